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

// killPatience is how long a client may wait until it gets on after a kill.
const killPatience = time.Minute

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

// moves waits until each flow has stored and followed more than it has now.
func moves(t *testing.T, flows []*flow, when string) {
	t.Helper()
	const more = 10
	for _, f := range flows {
		stored, followed := f.session.Progress().Records, f.followed.Load()
		err := poll(t.Context(), killPatience, func() error {
			if s, r := f.session.Progress().Records, f.followed.Load(); s < stored+more || r < followed+more {
				return fmt.Errorf("%s: stored %d, then %d; followed %d, then %d", f.stream, stored, s, followed, r)
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%s, after %v: %v", when, killPatience, err)
		}
	}
}

// victim is the process of a service that matters most to a stream.
func victim(t *testing.T, k *constellation.Constellation, c *client, service, stream string) string {
	t.Helper()
	if service != "sequencer" && service != "chain-writer" {
		return service
	}
	var name string
	eventually(t, killPatience, func() error {
		res, err := c.streams.GetStream(t.Context(), &novapb.GetStreamRequest{Bucket: bucket, Stream: stream})
		if err != nil {
			return err
		}
		if name = k.Who(res.GetExtent().GetLeader()); name == "" {
			return fmt.Errorf("the leader is %q", res.GetExtent().GetLeader())
		}
		return nil
	})
	if service == "sequencer" {
		return name
	}
	shards, err := c.admin.ListShards(t.Context(), &novapb.ListShardsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	writers := map[string]string{} // by chain
	after := ""
	for more := true; more; {
		res, err := c.admin.ListChains(t.Context(), &novapb.ListChainsRequest{StartAfter: after})
		if err != nil {
			t.Fatal(err)
		}
		for _, ch := range res.GetChains() {
			writers[ch.GetChainId()], after = k.Who(ch.GetAddress()), ch.GetChainId()
		}
		more = res.GetHasMore()
	}
	// The leader's shards share its chain.
	for _, s := range shards.GetShards() {
		if ids := s.GetChainIds(); k.Who(s.GetLeader()) == name && len(ids) > 0 && writers[ids[len(ids)-1]] != "" {
			return writers[ids[len(ids)-1]]
		}
	}
	t.Fatalf("no chain-writer of %s among %v", name, writers)
	return ""
}

// Whichever process is killed: appends and subscriptions go on, what was
// acknowledged is there, nothing is stored or delivered twice (I1, I2, I5), and
// the process comes back empty-handed (I12).
func TestKilledServices(t *testing.T) {
	if testing.Short() {
		return // the long run kills
	}
	k := startSplit(t)
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
			d := splitShape{}.start(t)
			c := dial(t, d.address())
			client, err := sdk.Dial(d.address(), sdk.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			var flows []*flow
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var sending sync.WaitGroup
			const streams = 4
			sent := make([]uint64, streams)
			for i := range streams {
				name := fmt.Sprint("s", i)
				c.create(t, name, nil)
				f := startFlow(t.Context(), client, name)
				defer f.sub.Close()
				flows = append(flows, f)
				sending.Go(func() {
					n, err := f.send(ctx)
					if sent[i] = n; err != nil {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
			moves(t, flows, "before the kill")
			name := victim(t, k, c, v.service, "s0")
			if err := k.Kill(name); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if v.others {
				moves(t, flows, "without "+name)
			}
			gap := time.Since(began)
			if err := k.Restart(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			moves(t, flows, "with "+name+" again")
			stop()
			sending.Wait()
			for i, f := range flows {
				p, err := f.session.Close(within(t, killPatience))
				if err != nil || p.Records != sent[i] {
					t.Errorf("%s: %d sent, %d stored, %v", f.stream, sent[i], p.Records, err)
				}
				got, err := c.readAll(t.Context(), f.stream, 0)
				if err != nil || uint64(len(got)) != sent[i] {
					t.Fatalf("%s: %d records, want %d, %v", f.stream, len(got), sent[i], err)
				}
				for n, r := range got {
					if string(r.GetBody()) != strconv.Itoa(n) {
						t.Fatalf("%s: record %d is %q", f.stream, n, r.GetBody())
					}
				}
				eventually(t, killPatience, func() error {
					if n := f.followed.Load(); n != sent[i] {
						return fmt.Errorf("%s: followed %d of %d", f.stream, n, sent[i])
					}
					return nil
				})
				f.sub.Close()
				f.work.Wait()
				if !errors.Is(f.err, context.Canceled) {
					t.Errorf("%s: follower: %v", f.stream, f.err)
				}
			}
			c.mustVerify(t)
			t.Logf("%s: got on after %v, %d records", name, gap.Round(time.Millisecond), sent)
		})
	}
}
