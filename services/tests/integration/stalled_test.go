package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// deaf is a connection that reads some bytes and then no more, as that of a
// process that hangs.
type deaf struct {
	net.Conn
	left atomic.Int64
	gone chan struct{}
	once sync.Once
}

func (d *deaf) Read(b []byte) (int, error) {
	if d.left.Load() <= 0 {
		<-d.gone
		return 0, io.EOF
	}
	n, err := d.Conn.Read(b[:min(len(b), 4<<10)])
	d.left.Add(int64(-n))
	return n, err
}

func (d *deaf) Close() error {
	d.once.Do(func() { close(d.gone) })
	return d.Conn.Close()
}

// dialDeaf is a client of its own connection that reads n bytes.
func dialDeaf(t *testing.T, address string, n int64) novapb.ReadServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(4<<20), grpc.WithInitialConnWindowSize(8<<20),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil {
				return nil, err
			}
			d := &deaf{Conn: c, gone: make(chan struct{})}
			d.left.Store(n)
			return d, nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return novapb.NewReadServiceClient(conn)
}

// resident returns the bytes of memory that a process has.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// drain reads a stream of n records by as many subscriptions as are asked for, at
// once, each over its own connection.
func drain(t *testing.T, p *program, subscriptions, n int) (time.Duration, error) {
	start := time.Now()
	errs := make([]error, subscriptions)
	var all sync.WaitGroup
	for i := range subscriptions {
		conn := p.dial(t)
		defer conn.Close()
		c := novapb.NewReadServiceClient(conn)
		all.Go(func() {
			sub, err := c.Subscribe(t.Context(), &novapb.SubscribeRequest{
				Bucket: bucket, Stream: "s", CountPresence: &novapb.SubscribeRequest_Count{Count: uint64(n)},
			})
			next := uint64(0)
			for err == nil {
				var m *novapb.SubscribeResponse
				if m, err = sub.Recv(); err != nil {
					break
				}
				for _, r := range m.GetRecords() {
					if r.GetSeq() != next {
						err = fmt.Errorf("record %d where %d is due", r.GetSeq(), next)
					}
					next++
				}
			}
			if !errors.Is(err, io.EOF) || next != uint64(n) {
				errs[i] = fmt.Errorf("subscription %d ended at %d of %d: %w", i, next, n, err)
			}
		})
	}
	all.Wait()
	return time.Since(start), errors.Join(errs...)
}

// Clients that stop reading their sockets, subscriptions and reads, take no more
// memory than the budget for them, and no time from those that read (I8).
func TestStalledClientsTakeNeitherMemoryNorTime(t *testing.T) {
	const (
		budget  = 64 << 20
		stalled = 200
		healthy = 10
		batches = 48 // of 512 KiB
	)
	p := newProgram(t, "--delivery-mib", "64", "--tail-window-mib", "8", "--cache-mib", "16")
	p.start(t)
	conn := p.dial(t)
	defer conn.Close()
	c := clientOf(conn)
	if _, err := c.buckets.CreateBucket(t.Context(), &novapb.CreateBucketRequest{Bucket: bucket}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.streams.CreateStream(t.Context(), &novapb.CreateStreamRequest{Bucket: bucket, Stream: "s"}); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, 64<<10)
	records := 0
	for range batches {
		req := &novapb.AppendRequest{Bucket: bucket, Stream: "s"}
		for range 8 {
			for i := range body {
				body[i] = byte(i*records + i>>8*7)
			}
			req.Records = append(req.Records, &novapb.AppendRecord{Body: append([]byte(nil), body...)})
			records++
		}
		if _, err := c.appends.Append(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := drain(t, p, healthy, records); err != nil { // warms caches
		t.Fatal(err)
	}
	alone, err := drain(t, p, healthy, records)
	if err != nil {
		t.Fatal(err)
	}
	before := resident(t, p.cmd.Process.Pid)

	ctx, cancel := context.WithCancel(t.Context())
	var reads sync.WaitGroup
	defer reads.Wait()
	defer cancel()
	for i := range stalled {
		deaf := dialDeaf(t, p.address, 128<<10)
		if i%10 == 0 {
			// It asks for many pages and takes none.
			for range 20 {
				reads.Go(func() { _, _ = deaf.Read(ctx, &novapb.ReadRequest{Bucket: bucket, Stream: "s"}) })
			}
			continue
		}
		sub, err := deaf.Subscribe(ctx, &novapb.SubscribeRequest{Bucket: bucket, Stream: "s"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sub.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	most := int64(0)
	var slowest time.Duration
	for range 4 {
		took, err := drain(t, p, healthy, records)
		if err != nil {
			t.Fatal(err)
		}
		most, slowest = max(most, resident(t, p.cmd.Process.Pid)), max(slowest, took)
	}
	t.Logf("%d healthy clients: %v alone, at most %v beside %d stalled ones; memory %d MiB before, at most %d MiB",
		healthy, alone, slowest, stalled, before>>20, most>>20)
	// As much again until the runtime collects, and buffers of the connections.
	if bound := before + 2*budget + (stalled+healthy)*512<<10 + 64<<20; most > bound {
		t.Errorf("%d MiB are resident, want at most %d", most>>20, bound>>20)
	}
	// Wide: the machine may be busy. Without a floor, they would not end at all.
	if slowest > 10*alone+10*time.Second {
		t.Errorf("%v, alone it was %v", slowest, alone)
	}
	// Those that read then are served as ever.
	if _, err := c.reads.CheckTail(t.Context(), &novapb.CheckTailRequest{Bucket: bucket, Stream: "s"}); err != nil {
		t.Error(err)
	}
}
