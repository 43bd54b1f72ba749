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

func ulidOf(at stream.Millis) string { return ulid.MustNew(uint64(at), rand.Reader).String() }

// store records a batch as the log would hold it: one record, at number n,
// numbered at a time.
func store(p *Producers, b stream.Producer, n stream.Seq, at stream.Millis) Batch {
	batch := Batch{Seq: b.Batch, First: n, Next: n + 1, FirstTimestamp: 7, LastTimestamp: 7, Hash: stream.Hash(n)}
	p.Record(b, batch, at)
	return batch
}

func fill(p *Producers, n int, at stream.Millis, id func(i int) string) {
	for i := range n {
		store(p, stream.Producer{ID: id(i)}, stream.Seq(i), at)
	}
}

func wantVerdict(t *testing.T, p *Producers, b stream.Producer, now stream.Millis, want Verdict) {
	t.Helper()
	if got, _, _ := p.Check(b, now); got != want {
		t.Errorf("%+v at %d: verdict %d, want %d", b, now, got, want)
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
		{"one that is too old to be remembered (I5)", stream.Producer{ID: "a", Epoch: 3, Batch: 3}, Lost, 20},
		{"the first, too old to be remembered (I5)", stream.Producer{ID: "a", Epoch: 3, Batch: 0}, Lost, 20},
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
	fill(&p, MaxProducers, start, func(i int) string { return fmt.Sprint(i) })
	next := stream.Producer{ID: "next"}
	wantVerdict(t, &p, next, start, Full)
	wantVerdict(t, &p, next, start+7*day, Full)
	wantVerdict(t, &p, stream.Producer{ID: "0", Batch: 1}, start, Accept)
	wantVerdict(t, &p, next, start+7*day+1, Accept)
	store(&p, next, 1000, start+7*day+1)
	if p.Len() != MaxProducers {
		t.Fatalf("%d producers are remembered (I8)", p.Len())
	}
	// The one silent for longest went. Whoever comes with a later batch may have
	// been it.
	wantVerdict(t, &p, stream.Producer{ID: "0", Batch: 1}, start+7*day+1, Lost)
	wantVerdict(t, &p, stream.Producer{ID: "1"}, start+7*day+1, Duplicate)
}

// How long a producer was silent is told by when its batches were numbered. The
// timestamps of its records may be the client's (I5): here they are of 1970.
func TestHorizonDoesNotTrustRecordTimestamps(t *testing.T) {
	var p Producers
	now := 20_000 * day
	fill(&p, MaxProducers, now, func(i int) string { return fmt.Sprint(i) })
	wantVerdict(t, &p, stream.Producer{ID: "next"}, now+7*day, Full)
	wantVerdict(t, &p, stream.Producer{ID: "next"}, now+7*day+1, Accept)
}

// A leader whose clock is behind its predecessor's forgets nothing early, and
// time stands still until it has caught up.
func TestHorizonUnderAClockThatGoesBack(t *testing.T) {
	var p Producers
	now := 20_000 * day
	fill(&p, MaxProducers, now, func(i int) string { return fmt.Sprint(i) })
	for i := range MaxProducers {
		store(&p, stream.Producer{ID: fmt.Sprint(i), Batch: 1}, 1000, now-100*day)
	}
	wantVerdict(t, &p, stream.Producer{ID: "next"}, now-99*day, Full)
	wantVerdict(t, &p, stream.Producer{ID: "next"}, now+7*day, Full)
	wantVerdict(t, &p, stream.Producer{ID: "next"}, now+7*day+1, Accept)
}

// A ULID that was forgotten, or may have been, never begins again (I5).
func TestForgottenULIDsAreRefused(t *testing.T) {
	var p Producers
	ids := make([]string, MaxProducers)
	for i := range ids {
		ids[i] = ulidOf(stream.Millis(1000 + i))
	}
	fill(&p, len(ids), 2000, func(i int) string { return ids[i] })
	store(&p, stream.Producer{ID: ids[0], Batch: 1}, 300, 2000) // heard of last
	younger := ulidOf(5000)
	wantVerdict(t, &p, stream.Producer{ID: younger}, 5000, Accept)
	store(&p, stream.Producer{ID: younger}, 301, 5000)
	if p.forgottenUntil != 1001 || p.forgotten != 1 || p.Len() != MaxProducers {
		t.Fatalf("%d forgotten up to %d, %d remembered; want the one silent for longest", p.forgotten, p.forgottenUntil, p.Len())
	}
	for id, want := range map[string]Verdict{ids[1]: Lost, ulidOf(900): Lost, ulidOf(1001): Lost, ulidOf(1002): Accept} {
		wantVerdict(t, &p, stream.Producer{ID: id}, 5000, want)
	}
	wantVerdict(t, &p, stream.Producer{ID: ids[0], Batch: 1}, 5000, Duplicate)
}

// ULIDs born before the horizon are refused even where nothing was forgotten,
// but for those that are remembered.
func TestOldULIDsAreRefused(t *testing.T) {
	var p Producers
	now := 20_000 * day
	old := ulidOf(now - 8*day)
	store(&p, stream.Producer{ID: old}, 0, now-8*day)
	wantVerdict(t, &p, stream.Producer{ID: old}, now, Duplicate)
	wantVerdict(t, &p, stream.Producer{ID: old, Batch: 1}, now, Accept)
	wantVerdict(t, &p, stream.Producer{ID: ulidOf(now - 7*day - 1)}, now, Old)
	wantVerdict(t, &p, stream.Producer{ID: ulidOf(now - 7*day)}, now, Accept)
	wantVerdict(t, &p, stream.Producer{ID: "of no age"}, now, Accept)
}

// A ULID whose birth is still to come is like a plain id: to forget it by its
// birth would refuse all newcomers until then, and let it begin again (I5).
func TestULIDsOfTheFutureAreForgottenLikePlainIDs(t *testing.T) {
	var p Producers
	now := 20_000 * day
	ahead := ulidOf(now + 1000*day)
	store(&p, stream.Producer{ID: ahead}, 0, now)
	fill(&p, MaxProducers-1, now, func(int) string { return ulidOf(now) })
	for range MaxProducers {
		store(&p, stream.Producer{ID: ulidOf(now + 1)}, 1, now+1)
	}
	wantVerdict(t, &p, stream.Producer{ID: ahead}, now+1, Duplicate)
	wantVerdict(t, &p, stream.Producer{ID: ulidOf(now + 2)}, now+2, Accept)
	store(&p, stream.Producer{ID: ulidOf(now + 8*day)}, 1, now+8*day) // the horizon of ahead has passed
	wantVerdict(t, &p, stream.Producer{ID: ulidOf(now + 8*day)}, now+8*day, Accept)
	if _, known := p.byID[ahead]; known {
		t.Error("it stays for ever")
	}
}

// At the limit of bytes those silent for longest keep fewer batches, and each
// its last one; what they do not keep is never stored again (I5, I8).
func TestLongSilentProducersKeepFewerBatches(t *testing.T) {
	var p Producers
	const big = 1 << 62
	id := func(i int) string { return fmt.Sprintf("%064d", i) }
	for i := range MaxProducers {
		for n := range uint64(MaxBatches) {
			b := stream.Producer{ID: id(i), Epoch: big, Batch: big + n}
			p.Record(b, Batch{Seq: b.Batch, First: big, Next: big + 1, FirstTimestamp: big, LastTimestamp: big, Hash: big}, big)
			if p.bytes > MaxTableBytes {
				t.Fatalf("the table has %d bytes", p.bytes)
			}
		}
	}
	wantVerdict(t, &p, stream.Producer{ID: id(0), Epoch: big, Batch: big + MaxBatches - 1}, big, Duplicate)
	wantVerdict(t, &p, stream.Producer{ID: id(0), Epoch: big, Batch: big + MaxBatches - 2}, big, Lost)
	wantVerdict(t, &p, stream.Producer{ID: id(0), Epoch: big, Batch: big + MaxBatches}, big, Accept)
	wantVerdict(t, &p, stream.Producer{ID: id(MaxProducers - 1), Epoch: big, Batch: big + 4}, big, Duplicate)
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
			isULID := birth(b.ID) <= now
			switch verdict {
			case Accept:
				if was && (isULID || now-had.at <= 7*day) {
					t.Fatalf("%+v was stored as %d %d days ago, and is accepted again", b, had.n, (now-had.at)/day)
				}
				log[k] = stored{now, seq}
				store(&p, b, seq, now)
				seq++
			case Duplicate:
				if !was || dup.First != had.n {
					t.Fatalf("%+v repeats %+v, was stored: %v as %d", b, dup, was, had.n)
				}
			case Gap, Old:
				if was && now-had.at <= 7*day {
					t.Fatalf("%+v was stored as %d, and is said not to be (verdict %d)", b, had.n, verdict)
				}
			}
			if p.Len() > MaxProducers {
				t.Fatalf("%d producers are remembered", p.Len())
			}
		}
		fresh := func(plain bool) string {
			id := fmt.Sprint("plain", len(ids))
			if !plain {
				id = ulidOf(now - stream.Millis(rapid.IntRange(0, 1000).Draw(t, "age")))
				if rapid.IntRange(0, 9).Draw(t, "ahead") == 0 {
					id = ulidOf(now + stream.Millis(rapid.Int64Range(0, int64(10*day)).Draw(t, "by")))
				}
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
