//go:build linux

package integration

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// trouble is a way in which the directory takes no writes for a while. None
// needs a privilege, and all bind root too.
type trouble struct {
	name       string
	metadata   bool // cannot be written either
	lease      time.Duration
	begin, end func(t *testing.T, p *program)
}

// limitFiles sets the size to which the running program may write files.
func (p *program) limitFiles(t *testing.T, bytes uint64) {
	t.Helper()
	var now unix.Rlimit
	if err := unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_FSIZE, nil, &now); err != nil {
		t.Fatal(err)
	}
	now.Cur = min(bytes, now.Max)
	if err := unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_FSIZE, &now, nil); err != nil {
		t.Fatal(err)
	}
}

// full lets no file grow beyond some bytes: as on a full disk, writes fail.
func full(name string, bytes uint64, lease time.Duration) trouble {
	return trouble{
		name: name, metadata: true, lease: lease,
		begin: func(t *testing.T, p *program) { p.limitFiles(t, bytes) },
		end:   func(t *testing.T, p *program) { p.limitFiles(t, unix.RLIM_INFINITY) },
	}
}

// moved takes a folder of the directory away and brings it back.
func moved(name, folder string) trouble {
	move := func(from, to string) func(t *testing.T, p *program) {
		return func(t *testing.T, p *program) {
			if err := os.Rename(filepath.Join(p.dir, from), filepath.Join(p.dir, to)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return trouble{name: name, lease: shortLease, begin: move(folder, "away"), end: move("away", folder)}
}

// A trouble lasts for longer than shortLease, and not for as long as longLease.
const (
	shortLease = 2 * time.Second
	longLease  = time.Minute
)

var troubles = []trouble{
	full("full", 0, longLease),
	full("full for long", 0, shortLease),
	// Small objects can still be written, those of an account cannot.
	full("almost full", accountBytes/2, longLease),
	moved("objects gone", "objects"),
	moved("folder of objects gone", "objects/objects"),
	moved("folder of temporary files gone", "objects/tmp"),
}

// account is a producer of single appends that remembers what it was told.
type account struct {
	stream string
	hashes map[uint64]uint64 // content hash by next number
	bodies []string          // of acknowledged batches, one record each
}

// accountBytes are those of a record of an account. They cannot be compressed.
const accountBytes = 64 << 10

func (a *account) request() *novapb.AppendRequest {
	body := make([]byte, accountBytes)
	seed := [32]byte{}
	binary.LittleEndian.PutUint64(seed[:], uint64(len(a.bodies)))
	_, _ = rand.NewChaCha8(seed).Read(body) // never fails
	r := request(a.stream, string(body))
	r.ProducerId, r.BatchSeq = "account", uint64(len(a.bodies))
	return r
}

// append sends the next batch, or again the last that was not acknowledged.
func (a *account) append(ctx context.Context, c *client) error {
	req := a.request()
	res, err := c.appends.Append(ctx, req)
	if err != nil {
		return err
	}
	a.bodies = append(a.bodies, string(req.GetRecords()[0].GetBody()))
	a.hashes[res.GetAck().GetNextSeq()] = res.GetAck().GetContentHash()
	return nil
}

// check reads the stream: every acknowledged batch is there once, in order, and
// the content hash is what was told at each acknowledgement, and is at the tail.
func (a *account) check(ctx context.Context, c *client) error {
	got, err := c.readAll(ctx, a.stream, 0)
	if err != nil {
		return err
	}
	var hash stream.Hash
	for i, r := range got {
		if i < len(a.bodies) && string(r.GetBody()) != a.bodies[i] {
			return fmt.Errorf("record %d of %s is %.30q, want %.30q", i, a.stream, r.GetBody(), a.bodies[i])
		}
		hash, _ = chunk.HashRecord(hash, &stream.Record{Seq: stream.Seq(r.GetSeq()), Timestamp: stream.Millis(r.GetTimestamp()), Body: r.GetBody()}, nil)
		if told, ok := a.hashes[uint64(i)+1]; ok && told != uint64(hash) {
			return fmt.Errorf("content hash after record %d of %s is %016x, was told %016x", i, a.stream, hash, told)
		}
	}
	if len(got) < len(a.bodies) {
		return fmt.Errorf("%s has %d records, %d were acknowledged", a.stream, len(got), len(a.bodies))
	}
	tail, err := c.reads.CheckTail(ctx, &novapb.CheckTailRequest{Bucket: bucket, Stream: a.stream})
	if err != nil {
		return err
	}
	if tail.GetContentHash() != uint64(hash) {
		return fmt.Errorf("content hash at the tail of %s is %016x, its records give %016x", a.stream, tail.GetContentHash(), hash)
	}
	return nil
}

// failedTruthfully checks the failure of an append that storage did not take. A
// caller that gave up first has no outcome, which means UNKNOWN.
func failedTruthfully(err error) error {
	switch code := status.Code(err); {
	case err == nil:
		return errors.New("an append was acknowledged that is not stored")
	case code == codes.DeadlineExceeded:
	case code != codes.Unavailable && code != codes.ResourceExhausted, reason.OutcomeOf(err) == "":
		return fmt.Errorf("code %s, outcome %q: %w", code, reason.OutcomeOf(err), err)
	}
	return nil
}

// load runs producers until stop, which returns when they have ended.
func load(t *testing.T, c *client, producers []*producer) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for _, p := range producers {
		work.Go(func() {
			for ctx.Err() == nil {
				if err := p.run(ctx, c); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return func() { cancel(); work.Wait() }
}

// grown waits until a stream has got more records.
func grown(t *testing.T, c *client, name string) {
	t.Helper()
	var first *uint64
	eventually(t, 60*time.Second, func() error {
		res, err := c.reads.CheckTail(within(t, 5*time.Second), &novapb.CheckTailRequest{Bucket: bucket, Stream: name})
		switch {
		case err != nil:
			return err
		case first == nil:
			first = ptr(res.GetTail())
		}
		if res.GetTail() == *first {
			return fmt.Errorf("%s stays at %d records", name, *first)
		}
		return nil
	})
}

// While the directory takes no writes appends fail, typed and in time, and what
// was acknowledged is read. When it does again, all goes on by itself, nothing
// is lost and nothing is there twice (I1, I2, I5), also after the next kill.
func TestDirectoryTakesNoWrites(t *testing.T) {
	for _, tr := range troubles {
		t.Run(tr.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			p := newProgram(t, "--lease-ttl", tr.lease.String())
			p.start(t)
			conn := p.dial(t)
			defer conn.Close()
			c := clientOf(conn)
			if _, err := c.buckets.CreateBucket(t.Context(), &novapb.CreateBucketRequest{Bucket: bucket}); err != nil {
				t.Fatal(err)
			}
			c.create(t, "s", nil)
			c.create(t, "load", nil)
			a := &account{stream: "s", hashes: map[uint64]uint64{}}
			for range 10 {
				if err := a.append(within(t, 30*time.Second), c); err != nil {
					t.Fatal(err)
				}
			}
			producers := []*producer{{id: "p0", stream: "load"}, {id: "p1", stream: "load"}}
			stop := load(t, c, producers)
			defer stop()
			grown(t, c, "load")

			tr.begin(t, p)
			for began, reads := time.Now(), 0; reads < 3 || time.Since(began) < 2*shortLease; reads++ {
				// Within the deadline, and some for a slow machine.
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				sent := time.Now()
				err := a.append(ctx, c)
				cancel()
				if took := time.Since(sent); took > 10*time.Second {
					t.Errorf("an append of 300ms was answered after %v", took)
				}
				if err := failedTruthfully(err); err != nil {
					t.Fatal(err)
				}
				patience := 30 * time.Second
				if tr.metadata && tr.lease == shortLease {
					patience = 500 * time.Millisecond
				}
				err = a.check(within(t, patience), c)
				switch code := status.Code(err); {
				case err == nil:
				case patience < time.Second && (code == codes.Unavailable || code == codes.DeadlineExceeded):
					// The leader could not renew its lease, and must not answer without.
				default:
					t.Fatalf("read during the trouble: %v", err)
				}
			}
			tr.end(t, p)
			ended := time.Now()
			eventually(t, 60*time.Second, func() error { return a.append(within(t, 5*time.Second), c) })
			t.Logf("appends again after %v", time.Since(ended).Round(time.Millisecond))
			c.append(t, uint64(len(a.bodies)), "s", "the last")
			grown(t, c, "load")
			stop()

			check := func(c *client) {
				t.Helper()
				if err := a.check(t.Context(), c); err != nil {
					t.Error(err)
				}
				got, err := c.readAll(t.Context(), "load", 0)
				if err == nil {
					err = checkRecords(got, producers)
				}
				if err != nil {
					t.Error(err)
				}
				c.mustVerify(t)
			}
			check(c)
			p.kill()
			p.start(t)
			again := p.dial(t)
			defer again.Close()
			check(clientOf(again))
		})
	}
}
