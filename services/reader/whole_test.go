package reader

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// opened makes records of a page's chunks, as a client does, and checks that the
// page has either.
func opened(t *testing.T, res *novapb.ReadResponse) {
	t.Helper()
	if len(res.GetChunks()) == 0 {
		return
	}
	if len(res.GetRecords()) > 0 {
		t.Fatal("a page has records and chunks")
	}
	hash := res.GetHashBefore()
	for _, c := range res.GetChunks() {
		h, records, err := chunk.Join(c.GetHeader(), c.GetPayload())
		if err != nil {
			t.Fatal(err)
		}
		if uint64(h.HashBefore) != hash || h.StreamID.String() != res.GetStreamId() {
			t.Fatalf("a chunk of stream %s after %016x, the page is of %s, after %016x", h.StreamID, h.HashBefore, res.GetStreamId(), hash)
		}
		hash = uint64(h.HashAfter)
		for i := range records {
			res.Records = append(res.Records, message(&novapb.Record{}, &records[i]))
		}
	}
	if hash != res.GetHashAfter() {
		t.Fatalf("the page ends with hash %016x, its chunks with %016x", res.GetHashAfter(), hash)
	}
	res.Chunks = nil
}

// eachWay runs a test with pages of records and with pages of chunks.
func eachWay(t *testing.T, name string, f func(t *testing.T, whole bool)) {
	t.Helper()
	t.Run(name+"/records", func(t *testing.T) { f(t, false) })
	t.Run(name+"/chunks", func(t *testing.T) { f(t, true) })
}

// five are chunks of two records each; the first n are settled.
func five(t *testing.T, n int) (*world, *led) {
	t.Helper()
	w := newWorld(t, Config{})
	s := w.create("s")
	for i := range 5 {
		w.chunk(s, numbered(2*i, 2)...)
	}
	if n > 0 {
		w.settle(s, n, settling{})
		w.learn(s)
	}
	return w, s
}

// Chunks are passed on whole if all their records are wanted; what is wanted of
// one in part comes as records, up to its end at most (I2).
func TestChunksArePassedOnWhole(t *testing.T) {
	for _, settled := range []int{0, 3, 5} {
		for _, c := range []struct {
			name     string
			req      *novapb.ReadRequest
			first, n int
			chunks   int
			reached  bool
		}{
			{"all", &novapb.ReadRequest{}, 0, 10, 5, false},
			{"from a chunk's first record", &novapb.ReadRequest{Start: atSeq(4)}, 4, 6, 3, false},
			{"from within a chunk", &novapb.ReadRequest{Start: atSeq(5)}, 5, 1, 0, false},
			{"from an offset", &novapb.ReadRequest{Start: &novapb.ReadRequest_TailOffset{TailOffset: 4}}, 6, 4, 2, false},
			{"from a time", &novapb.ReadRequest{Start: &novapb.ReadRequest_Timestamp{Timestamp: 1070}}, 6, 4, 0, false},
			{"as many as whole chunks have", &novapb.ReadRequest{CountPresence: &novapb.ReadRequest_Count{Count: 4}}, 0, 4, 2, true},
			{"a record more", &novapb.ReadRequest{CountPresence: &novapb.ReadRequest_Count{Count: 5}}, 0, 4, 2, false},
			{"one", &novapb.ReadRequest{CountPresence: &novapb.ReadRequest_Count{Count: 1}}, 0, 1, 0, true},
			{"none", &novapb.ReadRequest{CountPresence: &novapb.ReadRequest_Count{}}, 0, 0, 0, true},
			{"until a chunk's last record", &novapb.ReadRequest{UntilPresence: &novapb.ReadRequest_Until{Until: 1040}}, 0, 2, 1, false},
			{"until the next one's first", &novapb.ReadRequest{UntilPresence: &novapb.ReadRequest_Until{Until: 1041}}, 0, 4, 2, false},
			{"few bytes", &novapb.ReadRequest{BytesPresence: &novapb.ReadRequest_Bytes{Bytes: 16}}, 0, 2, 0, true},
			{"at the tail", &novapb.ReadRequest{Start: atSeq(10)}, 10, 0, 0, false},
		} {
			t.Run(fmt.Sprintf("%s/%d settled", c.name, settled), func(t *testing.T) {
				w, _ := five(t, settled)
				c.req.Chunks = true
				res, err := w.read(proto.CloneOf(c.req))
				if err != nil {
					t.Fatal(err)
				}
				if got := len(res.GetChunks()); got != c.chunks || res.GetLimitReached() != c.reached {
					t.Errorf("%d chunks, limit reached %t; want %d, %t", got, res.GetLimitReached(), c.chunks, c.reached)
				}
				opened(t, res)
				w.wantRecords(res.GetRecords(), c.first, c.n)
				if res.GetNextSeq() != uint64(c.first+c.n) {
					t.Errorf("next is %d", res.GetNextSeq())
				}
			})
		}
	}
}

// A page stays below the limit of a message, whole chunks decode to what a client
// may be asked to hold, and one that is too large for a page comes as records (I8).
func TestPagesOfChunksAreBounded(t *testing.T) {
	for name, body := range map[string]string{
		"incompressible": string(incompressible(1000 << 10)), "compressible": strings.Repeat("y", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{})
			s := w.create("s")
			for range 20 {
				w.chunk(s, body)
			}
			w.chunk(s, body, body, body, body)
			pages := 0
			for at := uint64(0); at < s.tail; pages++ {
				res, err := w.read(&novapb.ReadRequest{Start: atSeq(at), Chunks: true})
				if err != nil {
					t.Fatal(err)
				}
				if n := proto.Size(res); n > 3<<20 {
					t.Errorf("a page of %d bytes", n)
				}
				opened(t, res)
				if n := len(res.GetRecords()) * len(body); n > 8<<20 {
					t.Errorf("a page of %d bytes decoded", n)
				}
				at = res.GetNextSeq()
			}
			if pages > 12 {
				t.Errorf("%d pages", pages)
			}
		})
	}
}

// Who wrote is not for whoever reads.
func TestChunksForReadersNameNoProducers(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.create("s")
	w.change(s, func() {
		w.put(s, chunk.Input{StreamID: s.id, Batches: []chunk.InputBatch{{
			Producer: stream.Producer{ID: "secret", Epoch: 3, Batch: 4}, Records: []stream.Record{{Timestamp: 1, Body: []byte("record 0")}},
		}}})
	})
	res, err := w.read(&novapb.ReadRequest{Chunks: true})
	if err != nil || len(res.GetChunks()) != 1 {
		t.Fatalf("%v, %v", res, err)
	}
	h, _, err := chunk.Join(res.GetChunks()[0].GetHeader(), res.GetChunks()[0].GetPayload())
	if err != nil || h.Batches[0].Producer != (stream.Producer{}) || strings.Contains(string(res.GetChunks()[0].GetHeader()), "secret") {
		t.Errorf("%+v, %v", h, err)
	}
	opened(t, res)
	w.wantRecords(res.GetRecords(), 0, 1)
}

// Slots that a page needs and that are not fetched at once are read ahead; what the
// leader sent is not.
func TestSlotsOfAPageAreReadAhead(t *testing.T) {
	for _, window := range []bool{false, true} {
		w := newWorld(t, Config{FetchAhead: 1})
		w.window = window
		s := w.create("s")
		for range 3 {
			w.chunk(s, string(incompressible(800<<10)))
		}
		if _, err := w.read(&novapb.ReadRequest{Chunks: true}); err != nil {
			t.Fatal(err)
		}
		if window {
			if n := w.svc.ahead.asked.EstimatedSize(); n != 0 {
				t.Errorf("%d steps of what the leader sent are read ahead", n)
			}
			continue
		}
		eventually(t, "both slots are read ahead", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.ahead) == 2
		})
	}
}
