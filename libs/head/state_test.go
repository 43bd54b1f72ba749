package head

import (
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
)

func at(epoch stream.Epoch, no stream.EntryNo) stream.Position {
	return stream.Position{Epoch: epoch, Entry: no}
}

// chunkOf makes the header of a chunk of n records that follows s.
func chunkOf(s *State, n uint32, ts stream.Millis) *chunk.Header {
	h := &chunk.Header{
		BaseSeq: s.Tail, Count: n, HashBefore: s.Hash, HashAfter: s.Hash*31 + stream.Hash(n) + 1, FirstTimestamp: ts, LastTimestamp: ts,
	}
	h.Batches = []chunk.Batch{{Count: n, FirstTimestamp: ts, LastTimestamp: ts, HashAfter: h.HashAfter}}
	return h
}

func fold(t *testing.T, s *State, e Entry) {
	t.Helper()
	if applied, err := s.Fold(e); err != nil || !applied {
		t.Fatalf("fold %+v: applied %v, %v", e, applied, err)
	}
}

// Entries apply in order, each at most once (I1).
func TestEntriesApplyInOrderAndOnce(t *testing.T) {
	var s State
	first := Entry{Position: at(1, 0), Kind: bundle.KindChunk, Chunk: chunkOf(&s, 3, 10)}
	fold(t, &s, first)
	fold(t, &s, Entry{Position: at(1, 5), Kind: bundle.KindToken, Argument: []byte("token")})
	fold(t, &s, Entry{Position: at(2, 0), Kind: bundle.KindChunk, Chunk: chunkOf(&s, 2, 10)})
	fold(t, &s, Entry{Position: at(2, 1), Kind: bundle.KindTrim, Argument: TrimArgument(4)})
	if s.Tail != 5 || s.Token != "token" || s.Trim != 4 || s.LastTimestamp != 10 || s.Folded != at(2, 1) {
		t.Fatalf("state %+v", s)
	}
	before := s
	for _, e := range []Entry{
		first,
		{Position: at(1, 9), Kind: bundle.KindToken, Argument: []byte("an older epoch's")},
		{Position: at(2, 0), Kind: bundle.KindChunk, Chunk: chunkOf(&s, 1, 10)},
		{Position: at(2, 1), Kind: bundle.KindSeal},
	} {
		if applied, err := s.Fold(e); applied || err != nil {
			t.Errorf("an entry at %v again: applied %v, %v", e.Position, applied, err)
		}
	}
	if !reflect.DeepEqual(before, s) {
		t.Errorf("state changed to %+v", s)
	}
	fold(t, &s, Entry{Position: at(2, 2), Kind: bundle.KindSeal})
	fold(t, &s, Entry{Position: at(2, 3), Kind: bundle.KindToken})
	fold(t, &s, Entry{Position: at(2, 4), Kind: bundle.KindDelete})
	if !s.Sealed || !s.Deleted || s.Token != "" {
		t.Errorf("state %+v", s)
	}
}

// What does not follow is ErrBroken, and changes nothing (I1, I9).
func TestWhatDoesNotFollowIsBroken(t *testing.T) {
	var s State
	fold(t, &s, Entry{Position: at(1, 0), Kind: bundle.KindChunk, Chunk: chunkOf(&s, 3, 10)})
	edit := func(f func(*chunk.Header)) Entry {
		h := chunkOf(&s, 2, 10)
		f(h)
		return Entry{Position: at(1, 1), Kind: bundle.KindChunk, Chunk: h}
	}
	for what, e := range map[string]Entry{
		"a gap (I1)":                      edit(func(h *chunk.Header) { h.BaseSeq++ }),
		"numbers again (I1)":              edit(func(h *chunk.Header) { h.BaseSeq-- }),
		"a hash that does not connect":    edit(func(h *chunk.Header) { h.HashBefore++ }),
		"a timestamp that goes back":      edit(func(h *chunk.Header) { h.FirstTimestamp = 9 }),
		"a trim of another length":        {Position: at(1, 1), Kind: bundle.KindTrim, Argument: []byte{1}},
		"a fence, which is the shard's":   {Position: at(1, 1), Kind: bundle.KindFence},
		"a kind that is not known":        {Position: at(1, 1), Kind: 99},
		"no kind":                         {Position: at(1, 1)},
		"a trim without an argument":      {Position: at(1, 1), Kind: bundle.KindTrim},
		"the gap in the epoch after (I1)": {Position: at(2, 0), Kind: bundle.KindChunk, Chunk: edit(func(h *chunk.Header) { h.BaseSeq = 9 }).Chunk},
	} {
		before := s
		if applied, err := s.Fold(e); applied || !errors.Is(err, ErrBroken) {
			t.Errorf("%s: applied %v, %v", what, applied, err)
		}
		if !reflect.DeepEqual(before, s) {
			t.Errorf("%s: state changed to %+v", what, s)
		}
	}
	fold(t, &s, edit(func(*chunk.Header) {}))
}

func TestTrimStaysBelowTheTailAndGoesForward(t *testing.T) {
	var s State
	fold(t, &s, Entry{Position: at(1, 0), Kind: bundle.KindChunk, Chunk: chunkOf(&s, 10, 1)})
	for i, c := range []struct{ to, want stream.Seq }{{4, 4}, {2, 4}, {math.MaxUint64, 10}, {0, 10}} {
		fold(t, &s, Entry{Position: at(1, stream.EntryNo(i+1)), Kind: bundle.KindTrim, Argument: TrimArgument(c.to)})
		if s.Trim != c.want {
			t.Errorf("trim to %d: %d, want %d", c.to, s.Trim, c.want)
		}
	}
}

// A chunk's batches enter the producer table with their own numbers, and its
// seal flag closes the stream.
func TestChunkRecordsItsBatches(t *testing.T) {
	var s State
	h := chunkOf(&s, 6, 10)
	h.Batches = []chunk.Batch{
		{Count: 1, Producer: stream.Producer{ID: "a", Epoch: 1}, FirstTimestamp: 7, LastTimestamp: 7, HashAfter: 1},
		{Count: 2, FirstTimestamp: 8, LastTimestamp: 8, HashAfter: 2},
		{Count: 3, Producer: stream.Producer{ID: "a", Epoch: 1, Batch: 1}, Seal: true, FirstTimestamp: 9, LastTimestamp: 10, HashAfter: h.HashAfter},
	}
	fold(t, &s, Entry{Position: at(1, 0), Kind: bundle.KindChunk, Chunk: h})
	want := Batch{Seq: 1, First: 3, Next: 6, FirstTimestamp: 9, LastTimestamp: 10, Hash: h.HashAfter}
	got, dup, _ := s.Producers.Check(h.Batches[2].Producer, 1)
	if got != Duplicate || dup != want || !s.Sealed || s.Tail != 6 || s.Producers.Len() != 1 {
		t.Fatalf("verdict %d, %+v; state %+v", got, dup, s)
	}
}
