package direct_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/client/clienttest"
	"github.com/nova-stream/nova/libs/discovery"
)

// A leader that hangs with its connections open is left when another leads, long
// before its silence would be noticed; what it stored and did not acknowledge is
// stored once (I5).
func TestSessionLeavesALeaderThatHangs(t *testing.T) {
	for _, step := range []clienttest.Step{clienttest.Taking, clienttest.Stored} {
		t.Run(string(step), func(t *testing.T) {
			w := newWorld(t)
			a, b := w.startSequencer(t, "a"), w.startSequencer(t, "b")
			w.startIndex(t)
			w.lead(a)
			if err := w.registry.PutHint(within(t), discovery.Hint{Shard: 3, Epoch: 1, Address: a.address}); err != nil {
				t.Fatal(err)
			}
			s := w.dial(t).OpenSession(within(t), client.SessionConfig{Bucket: bucket, Stream: name, Silence: time.Minute, Patience: time.Minute})
			send := func(from, to int) {
				t.Helper()
				for i := from; i < to; i++ {
					if err := s.Send(within(t), batch(fmt.Sprint(i))); err != nil {
						t.Fatal(err)
					}
				}
			}
			send(0, 10)
			if err := s.Flush(within(t)); err != nil {
				t.Fatal(err)
			}
			release, hung := make(chan struct{}), atomic.Int64{}
			w.store.SetFault(func(at clienttest.Step) error {
				if at != step || w.leader.Load() != a {
					return nil
				}
				hung.Add(1)
				<-release
				return status.Error(codes.Unavailable, "it woke up")
			})
			defer close(release)
			send(10, 15)
			for end := time.Now().Add(30 * time.Second); hung.Load() == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("no batch came to the leader")
				}
			}
			w.lead(b)
			began := time.Now()
			if err := w.registry.PutHint(within(t), discovery.Hint{Shard: 3, Epoch: 2, Address: b.address}); err != nil {
				t.Fatal(err)
			}
			if err := s.Flush(within(t)); err != nil {
				t.Fatal(err)
			}
			// Keepalive alone would notice after 15 s that a process hangs; this one
			// even answers keepalive.
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it went on after %v", took)
			}
			if _, err := s.Close(within(t)); err != nil {
				t.Fatal(err)
			}
			w.wantStored(t, 15)
		})
	}
}
