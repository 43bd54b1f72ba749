package integration

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/tests/constellation"
)

// killPatience is how long a client may wait until it gets on after a failure: a
// connection to what hangs is left after 45 s.
const killPatience = 2 * time.Minute

// flow appends numbers to a stream, one record each, and follows it, through
// the SDK.
type flow struct {
	stream   string
	session  *sdk.Session
	sub      *sdk.Subscription
	followed atomic.Uint64 // records that the follower has, all in order
	work     sync.WaitGroup
	err      error // of the follower; after work
}

func startFlow(ctx context.Context, c *sdk.Client, name string) *flow {
	f := &flow{stream: name}
	f.session = c.OpenSession(ctx, sdk.SessionConfig{Bucket: bucket, Stream: name})
	f.sub = c.Subscribe(ctx, sdk.SubscribeConfig{Request: &novapb.SubscribeRequest{
		Bucket: bucket, Stream: name, Start: &novapb.SubscribeRequest_Seq{Seq: 0}, HeartbeatMs: 1000,
	}})
	f.work.Go(func() { f.err = f.follow() })
	return f
}

// send appends until ctx ends, and returns how many records it sent.
func (f *flow) send(ctx context.Context) (n uint64, err error) {
	pace := time.NewTicker(2 * time.Millisecond)
	defer pace.Stop()
	for {
		select {
		case <-ctx.Done():
			return n, nil
		case <-pace.C:
		}
		// Not ctx: what is begun is finished.
		if err := f.session.Send(context.WithoutCancel(ctx), records(strconv.FormatUint(n, 10))); err != nil {
			return n, err
		}
		n++
	}
}

func (f *flow) follow() error {
	for {
		msg, err := f.sub.Next()
		if err != nil {
			return err
		}
		for _, r := range msg.GetRecords() {
			if want := strconv.FormatUint(r.GetSeq(), 10); string(r.GetBody()) != want || r.GetSeq() != f.followed.Load() {
				return fmt.Errorf("follower got record %d, %q, after %d records", r.GetSeq(), r.GetBody(), f.followed.Load())
			}
			f.followed.Add(1)
		}
	}
}

// flows are some that run.
type flows struct {
	t      *testing.T
	k      *constellation.Constellation
	c      *client
	sdk    *sdk.Client
	all    []*flow
	sent   []uint64
	enough context.CancelFunc
	work   sync.WaitGroup
}

// startFlows starts flows in a bucket of their own, on the shared constellation.
func startFlows(t *testing.T) *flows {
	t.Helper()
	d := splitShape{}.start(t).(splitDeployment)
	// A sequencer that could not renew its lease in an earlier test has ended.
	if err := d.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	sdkClient, err := sdk.Dial(d.address(), sdk.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, enough := context.WithCancel(t.Context())
	f := &flows{t: t, k: d.Constellation, c: dial(t, d.address()), sdk: sdkClient, sent: make([]uint64, 4), enough: enough}
	for i := range f.sent {
		name := fmt.Sprint("s", i)
		f.c.create(t, name, nil)
		one := startFlow(t.Context(), sdkClient, name)
		f.all = append(f.all, one)
		f.work.Go(func() {
			n, err := one.send(ctx)
			if f.sent[i] = n; err != nil && t.Context().Err() == nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	t.Cleanup(func() {
		enough()
		f.work.Wait()
		for _, one := range f.all {
			one.sub.Close()
			one.work.Wait()
			<-one.session.Done()
		}
		_ = sdkClient.Close()
	})
	f.move("before")
	return f
}

// move waits until each flow has stored and followed more than it has now.
func (f *flows) move(when string) {
	f.t.Helper()
	const more = 10
	for _, one := range f.all {
		stored, followed := one.session.Progress().Records, one.followed.Load()
		err := poll(f.t.Context(), killPatience, func() error {
			if s, r := one.session.Progress().Records, one.followed.Load(); s < stored+more || r < followed+more {
				return fmt.Errorf("%s: stored %d, then %d; followed %d, then %d", one.stream, stored, s, followed, r)
			}
			return nil
		})
		if err != nil {
			f.t.Fatalf("%s, after %v: %v", when, killPatience, err)
		}
	}
}

// answered waits until every index reaches its server again: appends need none.
func (f *flows) answered() {
	f.t.Helper()
	const inTurn = 10 // of two indexes, called in turn
	eventually(f.t, killPatience, func() error {
		for range inTurn {
			if _, err := f.c.streams.ListStreams(f.t.Context(), &novapb.ListStreamsRequest{Bucket: bucket}); err != nil {
				return err
			}
		}
		return nil
	})
}

// check ends the flows: all that was sent is stored, once, in order, and was
// followed.
func (f *flows) check() {
	f.t.Helper()
	f.enough()
	f.work.Wait()
	for i, one := range f.all {
		p, err := one.session.Close(within(f.t, killPatience))
		if err != nil || p.Records != f.sent[i] {
			f.t.Errorf("%s: %d sent, %d stored, %v", one.stream, f.sent[i], p.Records, err)
		}
		got, err := f.c.readAll(f.t.Context(), one.stream, 0)
		if err != nil || uint64(len(got)) != f.sent[i] {
			f.t.Fatalf("%s: %d records, want %d, %v", one.stream, len(got), f.sent[i], err)
		}
		for n, r := range got {
			if string(r.GetBody()) != strconv.Itoa(n) {
				f.t.Fatalf("%s: record %d is %q", one.stream, n, r.GetBody())
			}
		}
		eventually(f.t, killPatience, func() error {
			if n := one.followed.Load(); n != f.sent[i] {
				return fmt.Errorf("%s: followed %d of %d", one.stream, n, f.sent[i])
			}
			return nil
		})
		one.sub.Close()
		one.work.Wait()
		if !errors.Is(one.err, context.Canceled) {
			f.t.Errorf("%s: follower: %v", one.stream, one.err)
		}
	}
	f.c.mustVerify(f.t)
}

// victim is the process of a service that matters most to the first stream.
func (f *flows) victim(service string) string {
	f.t.Helper()
	if service != "sequencer" && service != "chain-writer" {
		return service
	}
	var leader string
	eventually(f.t, killPatience, func() error {
		res, err := f.c.streams.GetStream(f.t.Context(), &novapb.GetStreamRequest{Bucket: bucket, Stream: f.all[0].stream})
		if err != nil {
			return err
		}
		if leader = f.k.Who(res.GetExtent().GetLeader()); leader == "" {
			return fmt.Errorf("the leader is %q", res.GetExtent().GetLeader())
		}
		return nil
	})
	if service == "sequencer" {
		return leader
	}
	shards, err := f.c.admin.ListShards(f.t.Context(), &novapb.ListShardsRequest{})
	if err != nil {
		f.t.Fatal(err)
	}
	writers := map[string]string{} // by chain
	after := ""
	for more := true; more; {
		res, err := f.c.admin.ListChains(f.t.Context(), &novapb.ListChainsRequest{StartAfter: after})
		if err != nil {
			f.t.Fatal(err)
		}
		for _, ch := range res.GetChains() {
			writers[ch.GetChainId()], after = f.k.Who(ch.GetAddress()), ch.GetChainId()
		}
		more = res.GetHasMore()
	}
	// The leader's shards share its chain.
	for _, s := range shards.GetShards() {
		if ids := s.GetChainIds(); f.k.Who(s.GetLeader()) == leader && len(ids) > 0 && writers[ids[len(ids)-1]] != "" {
			return writers[ids[len(ids)-1]]
		}
	}
	f.t.Fatalf("no chain-writer of %s among %v", leader, writers)
	return ""
}

// Whichever process is killed: appends and subscriptions go on, what was
// acknowledged is there, nothing is stored or delivered twice (I1, I2, I5), and
// the process comes back empty-handed (I12).
func TestKilledServices(t *testing.T) {
	if testing.Short() {
		return // the long run kills
	}
	for _, v := range []struct {
		service string
		others  bool // that do its work while it is away
	}{
		{"sequencer", true},
		{"chain-writer", true},
		{"index-1", true},
		{"cache-1", true},
		{"reader-1", true},
		{"settler-1", true},
		{"reaper-1", true},
		{"gateway-1", false},
		{"oxia", false},
		{"consul", true}, // it decides nothing
		{"s3", false},
	} {
		t.Run(v.service, func(t *testing.T) {
			f := startFlows(t)
			name := f.victim(v.service)
			if err := f.k.Kill(name); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if v.others {
				f.move("without " + name)
			}
			gap := time.Since(began)
			if err := f.k.Restart(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			f.move("with " + name + " again")
			f.answered()
			f.check()
			t.Logf("%s: got on after %v, %d records", name, gap.Round(time.Millisecond), f.sent)
		})
	}
}

// All at once, the servers too.
func TestEverythingKilled(t *testing.T) {
	if testing.Short() {
		return // the long run kills
	}
	f := startFlows(t)
	names, err := f.k.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := f.k.Kill(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.k.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.move("after the start")
	f.check()
}

// A leader, or a chain-writer, that hangs for longer than its lease and then
// goes on as if nothing had happened does no harm (I4).
func TestFrozenServices(t *testing.T) {
	if testing.Short() {
		return // the long run freezes
	}
	for _, service := range []string{"sequencer", "chain-writer"} {
		t.Run(service, func(t *testing.T) {
			f := startFlows(t)
			name := f.victim(service)
			if err := f.k.Freeze(name); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.k.Thaw(name) })
			began := time.Now()
			f.move("while " + name + " hangs")
			t.Logf("%s: got on after %v", name, time.Since(began).Round(time.Millisecond))
			if err := f.k.Thaw(name); err != nil {
				t.Fatal(err)
			}
			f.move("when " + name + " goes on")
			f.check()
			if service == "sequencer" {
				// It learns that it was given up, and ends to be started again.
				eventually(t, killPatience, func() error { return f.k.Restart(t.Context(), name) })
			}
		})
	}
}
