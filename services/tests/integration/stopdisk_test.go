//go:build linux

package integration

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/reason"
)

// A stop ends in its time although the directory takes nothing and an append is
// under way, and leaves what the next start needs.
func TestStopWhileDirectoryTakesNoWrites(t *testing.T) {
	for _, tr := range []trouble{full("full", 0, longLease), moved("objects gone", "objects")} {
		t.Run(tr.name, func(t *testing.T) {
			t.Parallel()
			p := newProgram(t, "--stop-timeout", "2s", "--log-level", "debug")
			p.start(t)
			c := dial(t, p.address)
			c.create(t, "s", nil)
			a := &account{stream: "s", hashes: map[uint64]uint64{}}
			for range 3 {
				if err := a.append(within(t, 30*time.Second), c); err != nil {
					t.Fatal(err)
				}
			}
			tr.begin(t, p)
			answer := make(chan error, 1)
			go func() {
				_, err := c.appends.Append(within(t, 60*time.Second), a.request())
				answer <- err
			}()
			// It is under way when the writer has tried in vain.
			eventually(t, 30*time.Second, func() error {
				if !bytes.Contains(p.log.from(0), []byte("slot undecided")) {
					return errors.New("no slot is undecided")
				}
				return nil
			})
			began := time.Now()
			// Twice its timeout and what else it may take, for a slow machine.
			code := p.stop(t, 25*time.Second)
			t.Logf("stopped after %v with code %d", time.Since(began).Round(time.Millisecond), code)
			// The connection may end first: that is UNKNOWN too. Nobody may say that
			// nothing was stored.
			if err := <-answer; status.Code(err) != codes.Unavailable && status.Code(err) != codes.DeadlineExceeded || reason.OutcomeOf(err) == reason.NotCommitted {
				t.Errorf("the append under way: outcome %q, %v", reason.OutcomeOf(err), err)
			}
			if !tr.metadata { // else the limit ended with the program
				tr.end(t, p)
			}
			p.start(t)
			c = dial(t, p.address)
			if err := a.append(within(t, 30*time.Second), c); err != nil {
				t.Error(err)
			}
			if err := a.check(t.Context(), c); err != nil {
				t.Error(err)
			}
			c.mustVerify(t)
		})
	}
}
