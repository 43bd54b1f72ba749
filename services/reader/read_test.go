package reader

import (
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func atSeq(n uint64) *novapb.ReadRequest_Seq { return &novapb.ReadRequest_Seq{Seq: n} }

// tenRecords is a stream of chunks of 1, 2, 3 and 4 records, the i-th at
// 1010 + 10 i ms.
func tenRecords(t *testing.T, cfg Config) (*world, *led) {
	t.Helper()
	w := newWorld(t, cfg)
	s := w.create("s")
	for n, from := 1, 0; n <= 4; n++ {
		w.chunk(s, numbered(from, n)...)
		from += n
	}
	return w, s
}

// layouts are the places where tenRecords may lie.
var layouts = map[string]func(w *world, s *led){
	"window":                           func(w *world, _ *led) { w.window = true },
	"slots":                            func(*world, *led) {},
	"settled, the leader knows it not": func(w *world, s *led) { w.settle(s, 4, settling{}) },
	"a run of frames":                  func(w *world, s *led) { w.settle(s, 4, settling{}); w.learn(s) },
	"a run of one frame":               func(w *world, s *led) { w.settle(s, 4, settling{merge: true, others: 2}); w.learn(s) },
	"half settled":                     func(w *world, s *led) { w.settle(s, 2, settling{others: 1}); w.learn(s) },
	"half settled, then a window":      func(w *world, s *led) { w.window = true; w.settle(s, 3, settling{}); w.learn(s) },
	"a run per chunk": func(w *world, s *led) {
		for range 4 {
			w.settle(s, 1, settling{})
		}
		w.learn(s)
	},
	"in pages": func(w *world, s *led) {
		for range 4 {
			w.settle(s, 1, settling{others: 1})
			w.paged(s)
		}
		w.learn(s)
	},
}

// Every start and every limit, wherever the records lie.
func TestPages(t *testing.T) {
	for layout, arrange := range layouts {
		w, s := tenRecords(t, Config{})
		arrange(w, s)
		w.change(s, func() { s.trim = 2 })
		size := uint64(len("record 0"))
		for _, c := range []struct {
			name     string
			req      *novapb.ReadRequest
			first, n int
			limited  bool
		}{
			{"no start: the first retained", &novapb.ReadRequest{}, 2, 8, false},
			{"a number inside a chunk", &novapb.ReadRequest{Start: atSeq(4)}, 4, 6, false},
			{"the tail", &novapb.ReadRequest{Start: atSeq(10)}, 10, 0, false},
			{"the time of a record", &novapb.ReadRequest{Start: &novapb.ReadRequest_Timestamp{Timestamp: 1050}}, 4, 6, false},
			{"a time between records", &novapb.ReadRequest{Start: &novapb.ReadRequest_Timestamp{Timestamp: 1051}}, 5, 5, false},
			{"a time before the trim", &novapb.ReadRequest{Start: &novapb.ReadRequest_Timestamp{Timestamp: 1}}, 2, 8, false},
			{"a time to come", &novapb.ReadRequest{Start: &novapb.ReadRequest_Timestamp{Timestamp: 5000}}, 10, 0, false},
			{"the last three", &novapb.ReadRequest{Start: &novapb.ReadRequest_TailOffset{TailOffset: 3}}, 7, 3, false},
			{"more than there are", &novapb.ReadRequest{Start: &novapb.ReadRequest_TailOffset{TailOffset: 99}}, 2, 8, false},
			{"none of the last", &novapb.ReadRequest{Start: &novapb.ReadRequest_TailOffset{}}, 10, 0, false},
			{"clamp below", &novapb.ReadRequest{Start: atSeq(0), Clamp: true}, 2, 8, false},
			{"clamp beyond", &novapb.ReadRequest{Start: atSeq(77), Clamp: true}, 10, 0, false},
			{"count", &novapb.ReadRequest{CountPresence: &novapb.ReadRequest_Count{Count: uint64(5)}}, 2, 5, true},
			{"count of all", &novapb.ReadRequest{CountPresence: &novapb.ReadRequest_Count{Count: uint64(8)}}, 2, 8, true},
			{"count of none", &novapb.ReadRequest{CountPresence: &novapb.ReadRequest_Count{Count: uint64(0)}}, 2, 0, true},
			{"bytes of two records", &novapb.ReadRequest{BytesPresence: &novapb.ReadRequest_Bytes{Bytes: 2*size + 1}}, 2, 2, true},
			{"bytes of no record: the first all the same", &novapb.ReadRequest{BytesPresence: &novapb.ReadRequest_Bytes{Bytes: uint64(1)}}, 2, 1, true},
			{"bytes 0 reads nothing", &novapb.ReadRequest{Start: atSeq(5), BytesPresence: &novapb.ReadRequest_Bytes{Bytes: uint64(0)}}, 5, 0, true},
			{"bytes 0 finds a time", &novapb.ReadRequest{Start: &novapb.ReadRequest_Timestamp{Timestamp: 1051}, BytesPresence: &novapb.ReadRequest_Bytes{Bytes: uint64(0)}, WaitMs: 60000}, 5, 0, true},
			{"until a record", &novapb.ReadRequest{UntilPresence: &novapb.ReadRequest_Until{Until: int64(1050)}}, 2, 2, true},
			{"until before all", &novapb.ReadRequest{UntilPresence: &novapb.ReadRequest_Until{Until: int64(0)}}, 2, 0, true},
			{"until after all", &novapb.ReadRequest{UntilPresence: &novapb.ReadRequest_Until{Until: int64(9999)}}, 2, 8, false},
		} {
			t.Run(layout+"/"+c.name, func(t *testing.T) {
				res := w.mustRead(c.req, c.first, c.n)
				if res.GetTail() != 10 || res.GetFirstSeq() != 2 || res.GetStreamId() != s.id.String() || res.GetEndOfStream() || res.GetLimitReached() != c.limited {
					t.Fatalf("%v", res)
				}
			})
		}
		if reading := w.cached > 0; reading == (layout == "window") {
			t.Errorf("%s: the cache was asked %d times", layout, w.cached)
		}
	}
}

func TestBadStarts(t *testing.T) {
	from := func(seq uint64, limited bool) *novapb.ReadRequest {
		req := &novapb.ReadRequest{Start: atSeq(seq)}
		if limited {
			req.SetBytes(0)
		}
		return req
	}
	w, s := tenRecords(t, Config{})
	w.change(s, func() { s.trim = 3 })
	for _, limited := range []bool{false, true} { // reading nothing does not make a start good
		_, err := w.read(from(2, limited))
		want(t, err, codes.OutOfRange, reason.Trimmed)
		if first, _ := reason.Number(err, reason.KeyFirstSeq); first != 3 {
			t.Errorf("first is %d", first)
		}
		_, err = w.read(from(11, limited))
		want(t, err, codes.OutOfRange, reason.BeyondTail)
		if tail, _ := reason.Number(err, reason.KeyTail); tail != 10 {
			t.Errorf("tail is %d", tail)
		}
	}
	_, err := w.read(&novapb.ReadRequest{StreamId: stream.NewID().String()})
	want(t, err, codes.NotFound, reason.StreamNotFound)
}

// The hashes around pages join, and end in the leader's.
func TestContentHashesOfPagesJoin(t *testing.T) {
	w, s := tenRecords(t, Config{})
	var hash uint64
	for at := uint64(0); at < 10; {
		res := w.mustRead(&novapb.ReadRequest{Start: atSeq(at), CountPresence: &novapb.ReadRequest_Count{Count: min(3, 10-at)}}, int(at), int(min(3, 10-at)))
		if res.GetHashBefore() != hash {
			t.Fatalf("at %d: hash before is %016x, the page before ended with %016x", at, res.GetHashBefore(), hash)
		}
		hash, at = res.GetHashAfter(), res.GetNextSeq()
	}
	if hash != uint64(s.hash) {
		t.Errorf("%016x, the leader says %016x", hash, s.hash)
	}
}

// The largest records with the largest headers: a page stays under 3 MiB, and
// nothing is left out between pages.
func TestPagesStayBelow3MiB(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.create("s")
	big := strings.Repeat("x", 1<<20)
	w.chunk(s, big, big)
	w.chunk(s, big, big, "small")
	w.change(s, func() {
		in := chunk.Input{StreamID: s.id, BaseSeq: stream.Seq(s.tail), HashBefore: s.hash, Batches: make([]chunk.InputBatch, 1)}
		for i := range 40 {
			r := stream.Record{Seq: stream.Seq(s.tail) + stream.Seq(i), Timestamp: stream.Millis(s.time)}
			for range 64 {
				r.Headers = append(r.Headers, stream.Header{Name: []byte("n"), Value: []byte(big[:1000])})
			}
			in.Batches[0].Records = append(in.Batches[0].Records, r)
		}
		w.put(s, in)
	})
	pages := 0
	for at := uint64(0); at < s.tail; pages++ {
		res, err := w.read(&novapb.ReadRequest{Start: atSeq(at)})
		if err != nil {
			t.Fatal(err)
		}
		if n := proto.Size(res); n >= 3<<20 {
			t.Fatalf("a page of %d bytes", n)
		}
		if len(res.GetRecords()) == 0 || res.GetRecords()[0].GetSeq() != at || res.GetNextSeq() != at+uint64(len(res.GetRecords())) || res.GetLimitReached() {
			t.Fatalf("at %d: %d records, next %d", at, len(res.GetRecords()), res.GetNextSeq())
		}
		at = res.GetNextSeq()
	}
	if pages > 5 {
		t.Errorf("%d pages for 7 MiB", pages)
	}
}

// A page of small chunks is gathered with more than one fetch. What is gathered
// is returned when what follows is gone: trimmed, or without a leader.
func TestPageIsGathered(t *testing.T) {
	for name, c := range map[string]struct {
		then func(w *world, s *led)
		n    int
	}{
		"whole":     {func(*world, *led) {}, 10},
		"trimmed":   {func(_ *world, s *led) { s.trim = s.tail }, 3},
		"no leader": {func(w *world, _ *led) { w.down = reason.New(codes.Unavailable, reason.NoLeader, "no leader") }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			w, s := tenRecords(t, Config{})
			w.most = 1
			asked := 0
			w.before = func(*sequencerpb.FetchRequest) {
				if asked++; asked == 3 {
					w.change(s, func() { c.then(w, s) })
				}
			}
			w.mustRead(&novapb.ReadRequest{}, 0, c.n)
			if asked < 3 {
				t.Errorf("%d fetches", asked)
			}
		})
	}
}

// Chunks that compress to nothing are bounded by what they decode to (I8).
func TestFetchIsBoundedByDecodedSize(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.create("s")
	for range 40 {
		w.chunk(s, strings.Repeat("y", 1<<20))
	}
	res, err := w.read(&novapb.ReadRequest{})
	if err != nil || len(res.GetRecords()) != 2 || res.GetNextSeq() != 2 {
		t.Fatalf("%d records, next %d, %v", len(res.GetRecords()), res.GetNextSeq(), err)
	}
	if limit := 3 + w.svc.cfg.FetchAhead; w.cached > limit {
		t.Errorf("%d chunks of 1 MiB were fetched for a page, at most %d are due", w.cached, limit)
	}
}

func TestWait(t *testing.T) {
	w, s := tenRecords(t, Config{})
	w.mustRead(&novapb.ReadRequest{Start: atSeq(10), WaitMs: 20}, 10, 0)
	waiting := make(chan struct{})
	tell := sync.OnceFunc(func() { close(waiting) })
	w.before = func(*sequencerpb.FetchRequest) { tell() }
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-waiting
		w.chunk(s, numbered(10, 2)...)
	}()
	began := time.Now()
	w.mustRead(&novapb.ReadRequest{Start: atSeq(10), WaitMs: 60000}, 10, 2)
	<-done
	if time.Since(began) > 50*time.Second {
		t.Error("it waited for the whole time")
	}
}

// A sealed stream has an end, and waiting for more of it ends at once.
func TestEndOfStream(t *testing.T) {
	w, s := tenRecords(t, Config{})
	w.change(s, func() { s.sealed = true })
	if res := w.mustRead(&novapb.ReadRequest{Start: atSeq(8), WaitMs: 60000}, 8, 2); !res.GetEndOfStream() {
		t.Error("the last page is not the end")
	}
	if res := w.mustRead(&novapb.ReadRequest{Start: atSeq(8), CountPresence: &novapb.ReadRequest_Count{Count: uint64(1)}}, 8, 1); res.GetEndOfStream() {
		t.Error("one before the end is the end")
	}
	if res := w.mustRead(&novapb.ReadRequest{Start: atSeq(10), WaitMs: 60000}, 10, 0); !res.GetEndOfStream() {
		t.Error("the tail is not the end")
	}
}

// Without a leader there is no answer, also where an old one would do: only
// settled history could be, and the leader alone knows what is committed.
func TestNoLeader(t *testing.T) {
	w, _ := tenRecords(t, Config{})
	w.down = reason.New(codes.Unavailable, reason.NoLeader, "no leader")
	for _, stale := range []bool{false, true} {
		_, err := w.read(&novapb.ReadRequest{StaleOk: stale})
		want(t, err, codes.Unavailable, reason.NoLeader)
	}
	_, err := w.svc.CheckTail(w.ctx(), &novapb.CheckTailRequest{Bucket: "b", Stream: "s"})
	want(t, err, codes.Unavailable, reason.NoLeader)
}

// A name that means another stream by now is resolved again, once: the reader's
// own memory of names is old, and the leader knows.
func TestNameThatMeansAnotherStream(t *testing.T) {
	w, old := tenRecords(t, Config{})
	w.mustRead(&novapb.ReadRequest{}, 0, 10)
	w.change(old, func() { old.deleted = true })
	young := w.create("s")
	w.chunk(young, numbered(0, 1)...)
	if res := w.mustRead(&novapb.ReadRequest{}, 0, 1); res.GetStreamId() != young.id.String() {
		t.Errorf("read %s", res.GetStreamId())
	}
	_, err := w.read(&novapb.ReadRequest{StreamId: old.id.String()})
	want(t, err, codes.NotFound, reason.StreamNotFound)
	tail, err := w.svc.CheckTail(w.ctx(), &novapb.CheckTailRequest{Bucket: "b", Stream: "s"})
	if err != nil || tail.GetTail() != 1 || tail.GetContentHash() != uint64(young.hash) || tail.GetLastTimestamp() != young.time {
		t.Errorf("%v, %v", tail, err)
	}
}

// While a seek by time looks for its chunk, the chunk is trimmed and removed:
// the leader is asked again and the first retained record is what is read.
func TestSeekByTimeRacesTrim(t *testing.T) {
	w, s := tenRecords(t, Config{})
	w.objects.Script(removal(w, s, 1, func() { s.trim = 5 }))
	w.mustRead(&novapb.ReadRequest{Start: &novapb.ReadRequest_Timestamp{Timestamp: 1020}}, 5, 5)
}
