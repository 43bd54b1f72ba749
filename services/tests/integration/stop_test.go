package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/metastore"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/novad"
)

// Whatever waits for the stop timeout takes far longer than a test is patient.
const (
	stopTimeout  = "5m"
	stopPatience = time.Minute
)

// eachStop runs a test once per kind of storage; launch returns the
// configuration of another node over the same storage.
func eachStop(t *testing.T, run func(t *testing.T, launch func(args ...string) novad.Config)) {
	t.Run("memory", func(t *testing.T) {
		s := newStorage()
		run(t, func(args ...string) novad.Config { return s.config(t, append(args, "--stop-timeout", stopTimeout)...) })
	})
	t.Run("dir", func(t *testing.T) {
		dir := t.TempDir()
		run(t, func(args ...string) novad.Config {
			return nodeConfig(t, append(args, "--dir", dir, "--stop-timeout", stopTimeout)...)
		})
	})
}

func startReady(t *testing.T, cfg novad.Config) *novad.Node {
	t.Helper()
	n := startNode(t, cfg)
	awaitReady(t, n)
	return n
}

// stopping stops a node; the second result waits for its end.
func stopping(t *testing.T, n *novad.Node) (ended func()) {
	t.Helper()
	done := make(chan error, 1)
	began := time.Now()
	go func() { done <- n.Close() }()
	return func() {
		t.Helper()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("stop: %v", err)
			}
			t.Logf("stopped after %v", time.Since(began).Round(time.Millisecond))
		case <-time.After(stopPatience):
			t.Fatalf("the node did not stop within %v", stopPatience)
		}
	}
}

// A stop does not wait for what would not end by itself; all of it hears that it
// may go on elsewhere, and can.
func TestStopEndsWhatIsIdle(t *testing.T) {
	eachStop(t, func(t *testing.T, launch func(...string) novad.Config) {
		n := startReady(t, launch())
		c := dial(t, n.Addr())
		c.create(t, "s", nil)
		c.append(t, 0, "s", "a")
		ctx := within(t, 2*stopPatience)

		subscriptions := make([]novapb.ReadService_SubscribeClient, 3)
		for i := range subscriptions {
			subscriptions[i] = c.subscribe(ctx, t, &novapb.SubscribeRequest{Stream: "s"})
			if _, err := follow(subscriptions[i], 0, 1); err != nil {
				t.Fatal(err)
			}
		}
		ses, _, err := c.session(ctx, &novapb.AppendSessionOpen{Stream: "s"})
		if err != nil {
			t.Fatal(err)
		}
		if err := ses.Send(batch(&novapb.AppendSessionBatch{Records: records("b")})); err != nil {
			t.Fatal(err)
		}
		if res, err := ses.Recv(); err != nil || res.GetAck().GetFirstSeq() != 1 {
			t.Fatalf("%v, %v", res, err)
		}
		silent, err := c.appends.AppendSession(ctx) // says nothing, not even which stream
		if err != nil {
			t.Fatal(err)
		}
		waits := make(chan error, 2)
		go func() {
			_, err := c.reads.Read(ctx, &novapb.ReadRequest{Bucket: bucket, Stream: "s", Start: &novapb.ReadRequest_Seq{Seq: 2}, WaitMs: 60000})
			waits <- err
		}()
		go func() {
			res, err := http.Get("http://" + n.HTTPAddr() + "/v1/buckets/" + bucket + "/streams/s/records?seq=2&wait=60000")
			if err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				err = status.Error(codes.Unknown, res.Status)
				if res.StatusCode == http.StatusServiceUnavailable {
					err = status.Error(codes.Unavailable, res.Status)
				}
			}
			waits <- err
		}()

		ended := stopping(t, n)
		for _, sub := range subscriptions {
			_, err := follow(sub, 1, 2) // the record of the session, then the end
			wantErr(t, err, codes.Unavailable, reason.NoLeader)
		}
		for _, s := range []novapb.AppendService_AppendSessionClient{ses, silent} {
			_, err := s.Recv()
			wantRefused(t, err, codes.Unavailable, reason.NoLeader)
		}
		ended()
		for range 2 {
			// One that came too late found nobody listening.
			if err := <-waits; status.Code(err) == codes.Unknown && !errors.As(err, new(net.Error)) {
				t.Errorf("a waiting read: %v", err)
			}
		}

		n = startReady(t, launch())
		defer stopNode(t, n)
		c = dial(t, n.Addr())
		sub := c.subscribe(ctx, t, &novapb.SubscribeRequest{Stream: "s", Start: &novapb.SubscribeRequest_Seq{Seq: 2}})
		c.append(t, 2, "s", "c")
		if got, err := follow(sub, 2, 1); err != nil || got[0] != "c" {
			t.Fatalf("%v, %v", got, err)
		}
		c.expect(t, "s", 0, "a", "b", "c")
		ended = stopping(t, n)
		ended()
	})
}

// What a session has under way when a stop begins is acknowledged first, and
// what has no acknowledgement when it ends is not stored: the status says so,
// and the next life of the node proves it (I2).
func TestStopAcknowledgesWhatIsUnderWay(t *testing.T) {
	eachStop(t, func(t *testing.T, launch func(...string) novad.Config) {
		var objects *fault.Store
		cfg := launch()
		kept := cfg.WrapObjects
		cfg.WrapObjects = func(own objectstore.Store) objectstore.Store {
			if kept != nil {
				own = kept(own)
			}
			objects = fault.New(own)
			return objects
		}
		n := startReady(t, cfg)
		c := dial(t, n.Addr())
		c.create(t, "s", nil)
		ctx := within(t, 2*stopPatience)
		ses, _, err := c.session(ctx, &novapb.AppendSessionOpen{Stream: "s"})
		if err != nil {
			t.Fatal(err)
		}
		held, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		objects.Script(fault.Rule{Op: fault.Put, Prefix: chains, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
			once.Do(func() { close(held) })
			select {
			case <-release:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}})
		var sent []string
		send := func() error {
			sent = append(sent, fmt.Sprint("r", len(sent)))
			return ses.Send(batch(&novapb.AppendSessionBatch{Records: records(sent[len(sent)-1])}))
		}
		for range 5 {
			if err := send(); err != nil {
				t.Fatal(err)
			}
		}
		<-held
		ended := stopping(t, n)
		eventually(t, stopPatience, func() error {
			if n.Ready() == nil {
				return errors.New("still ready")
			}
			return nil
		})
		for range 5 { // some of them may come too late
			_ = send()
		}
		close(release)
		acked := 0
		for {
			res, err := ses.Recv()
			if err != nil {
				wantRefused(t, err, codes.Unavailable, reason.NoLeader)
				break
			}
			if res.GetAck().GetFirstSeq() != uint64(acked) || res.GetAck() == nil {
				t.Fatalf("answer %d: %v", acked, res)
			}
			acked++
		}
		ended()
		if acked == 0 {
			t.Fatal("the batch that was being written was not acknowledged")
		}
		t.Logf("%d of %d acknowledged", acked, len(sent))
		n = startReady(t, launch())
		defer stopNode(t, n)
		dial(t, n.Addr()).expect(t, "s", 0, sent[:acked]...)
	})
}

// A stop that reaches neither store ends all the same: what it could not say,
// the next life finds out.
func TestStopWithDeadStores(t *testing.T) {
	for name, die := range map[string]func(*metafault.Store, *fault.Store){
		"metastore is silent": func(m *metafault.Store, _ *fault.Store) { m.Script(metafault.Rule{Do: metafault.Hang}) },
		"metastore refuses":   func(m *metafault.Store, _ *fault.Store) { m.Script(metafault.Rule{Do: metafault.FailBefore}) },
		"objects are silent":  func(_ *metafault.Store, o *fault.Store) { o.Script(fault.Rule{Do: fault.Hang}) },
		"both are silent": func(m *metafault.Store, o *fault.Store) {
			m.Script(metafault.Rule{Do: metafault.Hang})
			o.Script(fault.Rule{Do: fault.Hang})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStorage()
			// A lease so long that a stop which waits for a part of it is noticed.
			cfg := s.config(t, "--stop-timeout", stopTimeout, "--lease-ttl", "10m", "--shards", "16")
			var metadata *metafault.Store
			var objects *fault.Store
			keptMeta, kept := cfg.WrapMetastore, cfg.WrapObjects
			cfg.WrapMetastore = func(own metastore.Store) metastore.Store {
				metadata = metafault.New(keptMeta(own))
				return metadata
			}
			cfg.WrapObjects = func(own objectstore.Store) objectstore.Store {
				objects = fault.New(kept(own))
				return objects
			}
			n := startReady(t, cfg)
			c := dial(t, n.Addr())
			c.create(t, "s", nil)
			c.append(t, 0, "s", "a")
			ctx := within(t, 2*stopPatience)
			sub := c.subscribe(ctx, t, &novapb.SubscribeRequest{Stream: "s"})
			if _, err := follow(sub, 0, 1); err != nil {
				t.Fatal(err)
			}
			ses, _, err := c.session(ctx, &novapb.AppendSessionOpen{Stream: "s"})
			if err != nil {
				t.Fatal(err)
			}
			die(metadata, objects)
			ended := stopping(t, n)
			_, err = sub.Recv()
			wantErr(t, err, codes.Unavailable, reason.NoLeader)
			_, err = ses.Recv()
			wantRefused(t, err, codes.Unavailable, reason.NoLeader)
			ended()
		})
	}
}
