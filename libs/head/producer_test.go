package head

import (
	"crypto/rand"
	"fmt"
	"testing"

	"github.com/oklog/ulid/v2"
	"pgregory.net/rapid"

	"github.com/nova-stream/nova/libs/stream"
)

const day = stream.Millis(24 * 3600 * 1000)

func born(at stream.Millis) string { return ulid.MustNew(uint64(at), rand.Reader).String() }

// store records a batch as the log would hold it: one record, at number n.
func store(p *Producers, b stream.Producer, n stream.Seq, timestamp stream.Millis) Batch {
	batch := Batch{Seq: b.Batch, First: n, Next: n + 1, FirstTimestamp: timestamp, LastTimestamp: timestamp, Hash: stream.Hash(n)}
	p.Record(b, batch)
	return batch
}

func fill(p *Producers, n int, id func(i int) string) {
	for i := range n {
		store(p, stream.Producer{ID: id(i)}, stream.Seq(i), 1)
	}
}

func TestVerdictOfABatch(t *testing.T) {
	var p Producers
	for i := range uint64(20) {
		store(&p, stream.Producer{ID: "a", Epoch: 3, Batch: i}, stream.Seq(100+i), 1)
	}
	for _, c := range []struct {
		what     string
		batch    stream.Producer
		want     Verdict
		expected uint64
	}{
		{"the next", stream.Producer{ID: "a", Epoch: 3, Batch: 20}, Accept, 0},
		{"the last again (I5)", stream.Producer{ID: "a", Epoch: 3, Batch: 19}, Duplicate, 0},
		{"the oldest that is remembered again (I5)", stream.Producer{ID: "a", Epoch: 3, Batch: 4}, Duplicate, 0},
		{"one that is too old to be remembered (I5)", stream.Producer{ID: "a", Epoch: 3, Batch: 3}, Gap, 20},
		{"the first, too old to be remembered (I5)", stream.Producer{ID: "a", Epoch: 3, Batch: 0}, Gap, 20},
		{"one too many", stream.Producer{ID: "a", Epoch: 3, Batch: 21}, Gap, 20},
		{"a lower epoch", stream.Producer{ID: "a", Epoch: 2, Batch: 20}, Fenced, 3},
		{"a higher epoch begins", stream.Producer{ID: "a", Epoch: 4, Batch: 0}, Accept, 0},
		{"a higher epoch begins in the middle", stream.Producer{ID: "a", Epoch: 4, Batch: 20}, Gap, 0},
		{"another producer begins", stream.Producer{ID: "b", Epoch: 9, Batch: 0}, Accept, 0},
		{"another producer begins in the middle", stream.Producer{ID: "b", Epoch: 3, Batch: 20}, Gap, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			got, dup, expected := p.Check(c.batch, day)
			if got != c.want || expected != c.expected {
				t.Fatalf("verdict %d, expected %d; want %d, %d", got, expected, c.want, c.expected)
			}
			if got == Duplicate && (dup.First != stream.Seq(100+c.batch.Batch) || dup.Seq != c.batch.Batch) {
				t.Fatalf("it repeats %+v", dup)
			}
		})
	}
	store(&p, stream.Producer{ID: "a", Epoch: 4}, 200, 1)
	if got, _, expected := p.Check(stream.Producer{ID: "a", Epoch: 3, Batch: 20}, day); got != Fenced || expected != 4 {
		t.Fatalf("the lower epoch after the higher: %d, %d", got, expected)
	}
	if got, dup, _ := p.Check(stream.Producer{ID: "a", Epoch: 4}, day); got != Duplicate || dup.First != 200 {
		t.Fatalf("the higher epoch's first again: %d, %+v", got, dup)
	}
}

// Plain ids are forgotten only after Horizon; until then the table is full (I8).
func TestTableOfPlainIDsIsFullUntilTheHorizon(t *testing.T) {
	var p Producers
	start := 1000 * day
	p.Check(stream.Producer{ID: "0"}, start)
	fill(&p, MaxProducers, func(i int) string { return fmt.Sprint(i) })
	next := stream.Producer{ID: "next"}
	for _, at := range []stream.Millis{start, start + 7*day} {
		if got, _, _ := p.Check(next, at); got != Full {
			t.Fatalf("verdict %d at day %d, want Full", got, (at-start)/day)
		}
	}
	if got, _, _ := p.Check(stream.Producer{ID: "0", Batch: 1}, start); got != Accept {
		t.Fatalf("a known producer in a full table: %d", got)
	}
	if got, _, _ := p.Check(next, start+7*day+1); got != Accept {
		t.Fatalf("verdict %d after the horizon, want Accept", got)
	}
	store(&p, next, 1000, 1)
	if p.Len() != MaxProducers {
		t.Fatalf("%d producers are remembered (I8)", p.Len())
	}
}

// How long a producer was silent is not told by the timestamps of its records,
// which may be the client's (I5), nor by a log that was read just now.
func TestHorizonDoesNotTrustRecordTimestamps(t *testing.T) {
	for _, live := range []bool{true, false} {
		var p Producers
		now := 20_000 * day
		if live {
			p.Check(stream.Producer{ID: "0"}, now)
		}
		fill(&p, MaxProducers, func(i int) string { return fmt.Sprint(i) }) // of the year 1970
		for _, at := range []stream.Millis{now, now + 7*day} {
			if got, _, _ := p.Check(stream.Producer{ID: "next"}, at); got != Full {
				t.Fatalf("live=%v: verdict %d, want Full", live, got)
			}
		}
		if got, _, _ := p.Check(stream.Producer{ID: "next"}, now+7*day+1); got != Accept {
			t.Fatalf("live=%v: verdict %d after the horizon", live, got)
		}
	}
}

// A ULID that was forgotten, or may have been, never begins again (I5).
func TestForgottenULIDsAreRefused(t *testing.T) {
	var p Producers
	ids := make([]string, MaxProducers)
	for i := range ids {
		ids[i] = born(stream.Millis(1000 + i))
	}
	fill(&p, len(ids), func(i int) string { return ids[i] })
	store(&p, stream.Producer{ID: ids[0], Batch: 1}, 300, 1) // heard of last
	younger := born(5000)
	if got, _, _ := p.Check(stream.Producer{ID: younger}, day); got != Accept {
		t.Fatalf("a new ULID in a full table: %d", got)
	}
	store(&p, stream.Producer{ID: younger}, 301, 1)
	if p.Forgotten != 1001 || p.Len() != MaxProducers {
		t.Fatalf("forgotten up to %d, %d remembered; want the one silent for longest", p.Forgotten, p.Len())
	}
	for id, want := range map[string]Verdict{ids[1]: Gap, born(900): Gap, born(1001): Gap, born(1002): Accept} {
		if got, _, _ := p.Check(stream.Producer{ID: id}, day); got != want {
			t.Errorf("ULID born %v: verdict %d, want %d", ulid.MustParse(id).Time(), got, want)
		}
	}
	if got, _, _ := p.Check(stream.Producer{ID: ids[0], Batch: 1}, day); got != Duplicate {
		t.Errorf("a remembered producer, older than Forgotten: %d", got)
	}
}

// Whatever producers do, a batch is never stored twice within the horizon (I5),
// and the table stays bounded (I8).
func TestNoBatchIsStoredTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Producers
		type key struct {
			id           string
			epoch, batch uint64
		}
		type stored struct {
			at stream.Millis
			n  stream.Seq
		}
		log := map[key]stored{}
		now := 20_000 * day
		seq := stream.Seq(0)
		var ids []string
		send := func(b stream.Producer) {
			verdict, dup, _ := p.Check(b, now)
			k := key{b.ID, b.Epoch, b.Batch}
			had, was := log[k]
			_, isULID := birth(b.ID)
			switch verdict {
			case Accept:
				if was && (isULID || now-had.at <= 7*day) {
					t.Fatalf("%+v was stored as %d %d days ago, and is accepted again", b, had.n, (now-had.at)/day)
				}
				log[k] = stored{now, seq}
				store(&p, b, seq, rapid.SampledFrom([]stream.Millis{0, 1, now}).Draw(t, "timestamp"))
				seq++
			case Duplicate:
				if !was || dup.First != had.n {
					t.Fatalf("%+v repeats %+v, was stored: %v as %d", b, dup, was, had.n)
				}
			}
			if p.Len() > MaxProducers {
				t.Fatalf("%d producers are remembered", p.Len())
			}
		}
		fresh := func(plain bool) string {
			id := fmt.Sprint("plain", len(ids))
			if !plain {
				id = born(now - stream.Millis(rapid.IntRange(0, 1000).Draw(t, "age")))
			}
			ids = append(ids, id)
			return id
		}
		t.Repeat(map[string]func(*rapid.T){
			"crowd": func(*rapid.T) {
				plain := rapid.Bool().Draw(t, "plain")
				for range rapid.IntRange(1, 150).Draw(t, "crowd") {
					send(stream.Producer{ID: fresh(plain)})
				}
			},
			"send": func(*rapid.T) {
				if len(ids) == 0 {
					return
				}
				for range rapid.IntRange(1, 40).Draw(t, "batches") {
					send(stream.Producer{
						ID: rapid.SampledFrom(ids).Draw(t, "id"), Epoch: rapid.Uint64Range(0, 2).Draw(t, "epoch"), Batch: rapid.Uint64Range(0, 3).Draw(t, "batch"),
					})
				}
			},
			"stream of one": func(*rapid.T) {
				if len(ids) == 0 {
					return
				}
				id := rapid.SampledFrom(ids).Draw(t, "id")
				for i := range rapid.Uint64Range(1, 25).Draw(t, "batches") {
					send(stream.Producer{ID: id, Batch: i})
				}
			},
			"time": func(*rapid.T) { now += stream.Millis(rapid.Int64Range(1, int64(8*day)).Draw(t, "time")) },
		})
	})
}
