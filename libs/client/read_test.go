package client_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/client/clienttest"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func readAll(t *testing.T, c *client.Client, change func(*novapb.ReadRequest)) ([]string, error) {
	t.Helper()
	req := &novapb.ReadRequest{Bucket: bucket, Stream: name}
	if change != nil {
		change(req)
	}
	var got []string
	err := c.Read(limit(t), client.ReadConfig{Request: req}, func(p *novapb.ReadResponse) error {
		got = append(got, bodies(p.GetRecords())...)
		return nil
	})
	return got, err
}

// follow subscribes and returns the bodies, up to n or the end.
func follow(t *testing.T, c *client.Client, change func(*client.SubscribeConfig), n int) ([]string, error) {
	t.Helper()
	cfg := client.SubscribeConfig{Request: &novapb.SubscribeRequest{Bucket: bucket, Stream: name}}
	if change != nil {
		change(&cfg)
	}
	sub := c.Subscribe(limit(t), cfg)
	defer sub.Close()
	var got []string
	for len(got) < n {
		m, err := sub.Next()
		if err != nil {
			return got, err
		}
		got = append(got, bodies(m.GetRecords())...)
	}
	return got, nil
}

// once fails the first time a step is reached after n others of it.
func once(step clienttest.Step, n int32, err error) func(clienttest.Step) error {
	var seen atomic.Int32
	return func(s clienttest.Step) error {
		if s == step && seen.Add(1) == n+1 {
			return err
		}
		return nil
	}
}

func TestReadStopsAtTheTailAsOfItsStart(t *testing.T) {
	srv, c := start(t)
	srv.MaxPage = 4
	srv.Store(bucket, name, counted(10)...)
	var grow atomic.Bool
	srv.SetFault(func(step clienttest.Step) error {
		if step == clienttest.Paging && grow.Swap(true) {
			srv.Store(bucket, name, "later", "later")
		}
		return nil
	})
	if got, err := readAll(t, c, nil); err != nil || !slices.Equal(got, counted(10)) {
		t.Errorf("%v, %v", got, err)
	}
}

// The next page is under way while one is worked on, and none after the last.
func TestReadAsksAheadForOnePage(t *testing.T) {
	srv, c := start(t)
	srv.MaxPage = 1
	srv.Store(bucket, name, counted(3)...)
	asked := make(chan struct{}, 10)
	srv.SetFault(func(step clienttest.Step) error {
		if step == clienttest.Paging {
			asked <- struct{}{}
		}
		return nil
	})
	ctx, pages, requests := limit(t), 0, 0
	read := client.ReadConfig{Request: &novapb.ReadRequest{Bucket: bucket, Stream: name}}
	err := c.Read(ctx, read, func(*novapb.ReadResponse) error {
		for pages++; requests < min(pages+1, 3); requests++ {
			select {
			case <-asked:
			case <-ctx.Done():
				return fmt.Errorf("at page %d there were %d requests: %w", pages, requests, ctx.Err())
			}
		}
		return nil
	})
	if err != nil || pages != 3 || len(asked) > 0 {
		t.Errorf("%d pages, %d requests too many: %v", pages, len(asked), err)
	}
	enough := errors.New("enough")
	if err := c.Read(ctx, read, func(*novapb.ReadResponse) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("a caller that has enough gets %v", err)
	}
}

func limitTo(r interface {
	SetCount(uint64)
	SetBytes(uint64)
}, count, bytes *uint64) {
	if count != nil {
		r.SetCount(*count)
	}
	if bytes != nil {
		r.SetBytes(*bytes)
	}
}

// Limits hold over pages and reconnections, as if there were neither.
func TestLimitsHoldOverPagesAndReconnections(t *testing.T) {
	srv, c := start(t)
	srv.Store(bucket, name, "1", "22", "333", "4444", "5")
	for page := range 6 {
		srv.MaxPage = page
		for _, q := range []struct {
			count, bytes *uint64
			want         int
		}{{nil, nil, 5}, {ptr(uint64(0)), nil, 0}, {ptr(uint64(3)), nil, 3}, {nil, ptr(uint64(0)), 0}, {nil, ptr(uint64(1)), 1}, {nil, ptr(uint64(5)), 2}, {nil, ptr(uint64(9)), 3}, {nil, ptr(uint64(10)), 4}, {nil, ptr(uint64(100)), 5}} {
			want := []string{"1", "22", "333", "4444", "5"}[:q.want]
			got, err := readAll(t, c, func(r *novapb.ReadRequest) { limitTo(r, q.count, q.bytes) })
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("page %d: read %v, %v, want %v", page, got, err, want)
			}
			for cut := range int32(5) {
				srv.SetFault(once(clienttest.Messages, cut, clienttest.Cut))
				got, err = follow(t, c, func(s *client.SubscribeConfig) { limitTo(s.Request, q.count, q.bytes) }, max(q.want, 1))
				if err != nil && !errors.Is(err, io.EOF) || !slices.Equal(got, want) {
					t.Errorf("page %d, cut %d: followed %v, %v, want %v", page, cut, got, err, want)
				}
			}
			srv.SetFault(nil)
		}
	}
}

func TestReaderHearsOfWhatIsMissing(t *testing.T) {
	srv, c := start(t)
	srv.MaxPage = 2
	srv.Store(bucket, name, counted(10)...)
	trim := func(step clienttest.Step) func(clienttest.Step) error {
		f := once(step, 1, clienttest.Cut)
		return func(s clienttest.Step) error {
			err := f(s)
			if err != nil {
				srv.Trim(bucket, name, 5)
			}
			return err
		}
	}
	srv.SetFault(trim(clienttest.Messages))
	got, err := follow(t, c, nil, 10)
	if first, _ := reason.Number(err, reason.KeyFirstSeq); !reason.Is(err, reason.Trimmed) || first != 5 || !slices.Equal(got, counted(2)) {
		t.Errorf("followed %v, %v", got, err)
	}
	srv.Trim(bucket, name, 0)
	srv.SetFault(trim(clienttest.Paging))
	if got, err := readAll(t, c, nil); !reason.Is(err, reason.Trimmed) || !slices.Equal(got, counted(2)) {
		t.Errorf("read %v, %v", got, err)
	}
}

func TestSubscriberOfADeletedStreamDoesNotGetItsSuccessor(t *testing.T) {
	srv, c := start(t)
	srv.Store(bucket, name, "old")
	sub := c.Subscribe(limit(t), client.SubscribeConfig{Request: &novapb.SubscribeRequest{Bucket: bucket, Stream: name, HeartbeatMs: 100}})
	defer sub.Close()
	if m, err := sub.Next(); err != nil || len(m.GetRecords()) != 1 {
		t.Fatalf("%v, %v", m, err)
	}
	srv.SetFault(once(clienttest.Messages, 0, clienttest.Cut))
	srv.Create(bucket, name)
	srv.Store(bucket, name, "new", "new")
	for {
		m, err := sub.Next()
		if reason.Is(err, reason.StreamNotFound) {
			break
		}
		if err != nil || len(m.GetRecords()) != 0 {
			t.Fatalf("%v, %v", m, err)
		}
	}
	if _, err := sub.Next(); !reason.Is(err, reason.StreamNotFound) {
		t.Errorf("next after the end: %v", err)
	}
}

func TestChangedRecordIsNoticed(t *testing.T) {
	srv, c := start(t)
	srv.MaxPage = 3
	srv.Store(bucket, name, counted(9)...)
	srv.Corrupt(bucket, name, 4)
	if got, err := readAll(t, c, nil); !errors.Is(err, client.ErrBroken) || !slices.Equal(got, counted(3)) {
		t.Errorf("read %v, %v", got, err)
	}
	if got, err := follow(t, c, nil, 9); !errors.Is(err, client.ErrBroken) || !slices.Equal(got, counted(3)) {
		t.Errorf("followed %v, %v", got, err)
	}
}

func TestSubscriptionFollowsTheTailAndEndsWithTheStream(t *testing.T) {
	srv, c := start(t)
	sub := c.Subscribe(limit(t), client.SubscribeConfig{Request: &novapb.SubscribeRequest{
		Bucket: bucket, Stream: name, HeartbeatMs: 100, Start: &novapb.SubscribeRequest_TailOffset{TailOffset: 0},
	}})
	defer sub.Close()
	if m, err := sub.Next(); err != nil || len(m.GetRecords()) != 0 {
		t.Fatalf("%v, %v", m, err)
	}
	// Connections break at the tail; nothing is passed over meanwhile.
	srv.SetFault(once(clienttest.Messages, 0, clienttest.Cut))
	srv.Store(bucket, name, "0", "1")
	s := c.OpenSession(limit(t), config)
	if err := s.SendSealing(limit(t), batchOf("2")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Close(limit(t)); err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		m, err := sub.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, bodies(m.GetRecords())...)
	}
	if !slices.Equal(got, counted(3)) {
		t.Errorf("followed %v", got)
	}
}

func TestSilentSubscriptionIsLeft(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, srv *clienttest.Server, c *client.Client) {
		srv.Store(bucket, name, "0")
		release := make(chan struct{})
		defer close(release)
		var hung atomic.Bool
		srv.SetFault(func(step clienttest.Step) error {
			if step == clienttest.Messages && hung.CompareAndSwap(false, true) {
				<-release
			}
			return nil
		})
		got, err := follow(t, c, func(cfg *client.SubscribeConfig) { cfg.Silence = 10 * time.Second }, 1)
		if err != nil || !slices.Equal(got, counted(1)) {
			t.Errorf("%v, %v", got, err)
		}
	})
}

func TestReadersGiveUp(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, srv *clienttest.Server, c *client.Client) {
		srv.SetFault(func(clienttest.Step) error { return reason.New(codes.Unavailable, reason.NoLeader, "no leader") })
		const patience = 5 * time.Second
		if _, err := follow(t, c, func(cfg *client.SubscribeConfig) { cfg.Patience = patience }, 1); !reason.Is(err, reason.NoLeader) {
			t.Errorf("follow: %v", err)
		}
		cfg := client.ReadConfig{Request: &novapb.ReadRequest{Bucket: bucket, Stream: name}, Patience: patience}
		if err := c.Read(limit(t), cfg, nil); !reason.Is(err, reason.NoLeader) {
			t.Errorf("read: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Read(ctx, cfg, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("read: %v", err)
		}
	})
}

func TestTokenGoesToLoopbackOrOverTLSOnly(t *testing.T) {
	for address, ok := range map[string]bool{"127.0.0.1:1": true, "localhost:1": true, "[::1]:1": true, "unix:/x": true, "10.0.0.1:1": false, "nova.example:1": false, "127.example:1": false} {
		c, err := client.Dial(address, client.Options{Token: "secret"})
		if (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
		if err == nil {
			_ = c.Close()
		}
		if c, err = client.Dial(address, client.Options{Token: "secret", TLS: &tls.Config{MinVersion: tls.VersionTLS12}}); err != nil {
			t.Errorf("%s with TLS: %v", address, err)
		} else {
			_ = c.Close()
		}
	}
	srv := clienttest.New()
	c, err := client.Dial(srv.Serve(t), client.Options{Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Reads.CheckTail(limit(t), &novapb.CheckTailRequest{Bucket: bucket, Stream: name})
	if srv.Authorization != "Bearer secret" {
		t.Errorf("authorization %q", srv.Authorization)
	}
}
