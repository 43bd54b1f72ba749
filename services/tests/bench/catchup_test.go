package bench

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/metastore"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/index"
)

// unsettled is an age that nothing reaches.
const unsettled = 24 * time.Hour

// kept is what is in storage before it is read: streams that got as much each,
// portion by portion.
type kept struct {
	name                       string
	streams, portions, batches int  // batches per stream and portion
	settled                    bool // each portion; else all of it is in slots
}

var kinds = []kept{
	{"slots", 1, 1, 640, false},
	{"run", 1, 1, 640, true},   // one large one
	{"runs", 16, 10, 4, true},  // small ones, in shared objects
	{"small", 16, 1, 40, true}, // one object for all
}

// BenchmarkCatchUp: bytes per second of one reader of streams, one after another,
// that are only in storage, against getting the objects that hold them one after
// another. Each round has a node that has read nothing yet.
func BenchmarkCatchUp(b *testing.B) {
	for _, s := range stores {
		for _, h := range kinds {
			b.Run(s.name+"/"+h.name, func(b *testing.B) {
				for b.Loop() {
					report(b, catchUp(b, func() objectstore.Store { return s.open(b) }, h, 3))
				}
			})
		}
	}
}

func catchUp(tb testing.TB, open func() objectstore.Store, h kept, rounds int) map[string]float64 {
	var rate, cpu against
	m := machine{tb: tb}
	for range rounds {
		past := &past{Store: open(), rows: metamem.New()}
		past.write(tb, h)
		n := past.start(tb, unsettled, unsettled)
		c := dial(tb, n.Addr())
		m.watch(0)
		begun, idle, read := time.Now(), m.ours(), 0
		for i := range h.streams {
			read += readAll(tb, c, streamOf(i))
		}
		if want := h.streams * h.portions * h.batches * batchRecords * recordBytes; read != want {
			tb.Fatalf("read %d bytes of %d", read, want)
		}
		rate.nova.add(float64(read) / time.Since(begun).Seconds())
		cpu.nova.add((m.ours() - idle).Seconds() / float64(read))
		begun, idle, read = time.Now(), m.ours(), 0
		for _, key := range past.objects(h) {
			o, err := past.Get(tb.Context(), key)
			if err != nil {
				tb.Fatal(err)
			}
			read += len(o.Body)
		}
		rate.raw.add(float64(read) / time.Since(begun).Seconds())
		cpu.raw.add((m.ours() - idle).Seconds() / float64(read))
		m.end()
		n.stop()
	}
	return map[string]float64{
		"x-raw": rate.ratio(), "nova-MiB/s": rate.nova.median() / (1 << 20), "raw-MiB/s": rate.raw.median() / (1 << 20),
		"cpu-s/GiB": cpu.nova.median() * (1 << 30), "raw-cpu-s/GiB": cpu.raw.median() * (1 << 30), "others-%": m.othersShare(),
	}
}

func streamOf(i int) string { return fmt.Sprintf("catch-up-%02d", i) }

// readAll reads a stream from its first record to its tail and returns the bytes
// of bodies.
func readAll(tb testing.TB, c *client.Client, name string) (read int) {
	err := c.Read(tb.Context(), client.ReadConfig{Request: &novapb.ReadRequest{Bucket: bucket, Stream: name}}, func(page *novapb.ReadResponse) error {
		for _, r := range page.GetRecords() {
			read += len(r.GetBody())
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return read
}

// past is the stores that nodes leave behind, and what they put. Close leaves
// them open.
type past struct {
	objectstore.Store

	rows metastore.Store

	mu   sync.Mutex
	keys []string
}

// start starts a node over the stores that looks so often what there is to absorb,
// and to settle as it is as old as age.
func (p *past) start(tb testing.TB, age, interval time.Duration) inside {
	tb.Helper()
	cfg := nodeConfig(tb, "--dev", "--tail-window-mib", "1")
	cfg.Settler.SettleAge, cfg.Settler.Interval = age, interval
	cfg.WrapObjects = func(own objectstore.Store) objectstore.Store { return putting{p, own} }
	cfg.WrapMetastore = func(own metastore.Store) metastore.Store { return keptMetadata{p.rows, own} }
	return startNode(tb, cfg)
}

// putting is what a node has of a past; own is what the node opened.
type putting struct {
	*past

	own objectstore.Store
}

func (p putting) Close() error { return p.own.Close() }

func (p putting) PutIfAbsent(ctx context.Context, key string, body []byte) (objectstore.ETag, error) {
	tag, err := p.past.PutIfAbsent(ctx, key, body)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = append(p.keys, key)
	return tag, err
}

// objects returns what holds the records.
func (p *past) objects(h kept) (keys []string) {
	prefix := slots
	if h.settled {
		prefix = "settled/"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.keys {
		if strings.HasPrefix(k, prefix) {
			keys = append(keys, k)
		}
	}
	return keys
}

// write makes it, by a node that then stops.
func (p *past) write(tb testing.TB, h kept) {
	tb.Helper()
	age := unsettled
	if h.settled {
		age = time.Millisecond
	}
	const interval = 20 * time.Millisecond
	n := p.start(tb, age, interval)
	defer n.stop()
	c := dial(tb, n.Addr())
	create(tb, c)
	records := batchOf(batchRecords, recordBytes)
	ids := make([]string, h.streams)
	for portion := range h.portions {
		var all []*client.Session
		for i := range h.streams {
			s := c.OpenSession(tb.Context(), client.SessionConfig{Bucket: bucket, Stream: streamOf(i)})
			all = append(all, s)
			for range h.batches {
				if err := s.Send(tb.Context(), records); err != nil {
					tb.Fatal(err)
				}
			}
		}
		for i, s := range all {
			if _, err := s.Close(tb.Context()); err != nil {
				tb.Fatal(err)
			}
			tail, err := c.Reads.CheckTail(tb.Context(), &novapb.CheckTailRequest{Bucket: bucket, Stream: streamOf(i)})
			if err != nil {
				tb.Fatal(err)
			}
			ids[i] = tail.GetStreamId()
		}
		if h.settled {
			p.await(tb, ids, stream.Seq((portion+1)*h.batches*batchRecords))
		}
	}
}

// await waits until the heads of streams reach a number.
func (p *past) await(tb testing.TB, ids []string, tail stream.Seq) {
	tb.Helper()
	rows, err := index.New(index.Config{}, index.Deps{Store: p.rows})
	if err != nil {
		tb.Fatal(err)
	}
	for _, id := range ids {
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			res, err := rows.GetHead(tb.Context(), &indexpb.GetHeadRequest{StreamId: id})
			if err != nil {
				tb.Fatal(err)
			}
			if history.Next(res.GetHead()) >= tail {
				break
			}
			if time.Now().After(end) {
				tb.Fatalf("stream %s is not settled up to %d", id, tail)
			}
		}
	}
}
