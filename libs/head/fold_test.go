package head

import (
	"fmt"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// logOf draws the log of a stream as leaders write it: entries of other streams
// lie between, leaders follow each other, clocks go back, producers come and go.
func logOf(t *rapid.T) (State, []Entry) {
	var whole State
	var log []Entry
	epoch, no, now := stream.Epoch(1), stream.EntryNo(0), 20_000*day
	var producers []stream.Producer
	add := func(e Entry) {
		e.Position = at(epoch, no)
		no += stream.EntryNo(rapid.IntRange(1, 3).Draw(t, "others' entries"))
		if applied, err := whole.Fold(e); err != nil || !applied {
			t.Fatal(err)
		}
		log = append(log, e)
	}
	appendChunk := func(n int, producer func(i int) stream.Producer) {
		e := Entry{Kind: bundle.KindChunk, Timestamp: now, Chunk: chunkOf(&whole, uint32(n), whole.LastTimestamp+stream.Millis(n%2))}
		e.Chunk.Batches = nil
		for i := range n {
			ts := e.Chunk.FirstTimestamp
			e.Chunk.Batches = append(e.Chunk.Batches, chunk.Batch{Count: 1, Producer: producer(i), FirstTimestamp: ts, LastTimestamp: ts, HashAfter: stream.Hash(i) << 40})
		}
		e.Chunk.Batches[n-1].HashAfter = e.Chunk.HashAfter
		add(e)
	}
	fresh := func() stream.Producer {
		id := fmt.Sprint("plain", len(producers))
		switch rapid.IntRange(0, 4).Draw(t, "id") {
		case 0:
			id = ulidOf(now + day)
		case 1, 2, 3:
			id = ulidOf(now - stream.Millis(rapid.IntRange(0, 5000).Draw(t, "age")))
		}
		return stream.Producer{ID: id}
	}
	appendChunk(1, func(int) stream.Producer { return stream.Producer{} })
	for range rapid.IntRange(1, 30).Draw(t, "entries") {
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			epoch, no = epoch+1, 0
			now -= stream.Millis(rapid.IntRange(0, 100_000).Draw(t, "a clock that is behind"))
		case 1:
			add(Entry{Kind: bundle.KindTrim, Argument: TrimArgument(stream.Seq(rapid.Uint64Range(0, 100).Draw(t, "trim")))})
		case 2:
			add(Entry{Kind: bundle.KindToken, Argument: []byte(rapid.StringN(0, 5, 5).Draw(t, "token"))})
		case 3:
			now += stream.Millis(rapid.Int64Range(0, int64(3*day)).Draw(t, "time"))
		case 4, 5:
			appendChunk(rapid.IntRange(1, 150).Draw(t, "crowd"), func(int) stream.Producer {
				producers = append(producers, fresh())
				return producers[len(producers)-1]
			})
		default:
			if len(producers) == 0 {
				appendChunk(1, func(int) stream.Producer { return stream.Producer{} })
				break
			}
			// Of those that are remembered: others would have to begin.
			who := rapid.IntRange(0, len(producers)-1).Draw(t, "who")
			appendChunk(rapid.IntRange(1, 20).Draw(t, "batches"), func(int) stream.Producer {
				p := &producers[who]
				p.Batch++
				if _, known := whole.Producers.byID[p.ID]; !known {
					*p = stream.Producer{ID: fmt.Sprint(p.ID, "+")}
				}
				return *p
			})
		}
		now += stream.Millis(rapid.IntRange(0, 1000).Draw(t, "pause"))
	}
	if rapid.IntRange(0, 5).Draw(t, "end") == 0 {
		add(Entry{Kind: rapid.SampledFrom([]bundle.Kind{bundle.KindSeal, bundle.KindDelete}).Draw(t, "how")})
	}
	return whole, log
}

// throughRecord writes a state into a row, as a settler does, and reads it back,
// as a leader does that opens the stream.
func throughRecord(t *rapid.T, s *State) State {
	r := &indexpb.Head{StreamId: "s", OpenedEpoch: 3, Quarantine: "why"}
	s.Write(r)
	encoded, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if len(encoded) > MaxTableBytes+1<<10 {
		t.Fatalf("the record has %d bytes", len(encoded))
	}
	if got := proto.Size(&indexpb.Head{Producers: r.GetProducers()}); got != s.Producers.bytes {
		t.Fatalf("the table has %d bytes in the record, %d are counted", got, s.Producers.bytes)
	}
	var back indexpb.Head
	if err := proto.Unmarshal(encoded, &back); err != nil {
		t.Fatal(err)
	}
	if back.GetStreamId() != "s" || back.GetOpenedEpoch() != 3 || back.GetQuarantine() != "why" {
		t.Fatal("what is not the fold's was lost")
	}
	return Read(&back)
}

// However a log is cut into folds, whatever of it is folded again, and wherever
// the head is written and read back between them, the result is that of one
// fold: opening and settling agree, whoever crashes (I1, I5, I9).
func TestFoldAgreesWhereverItBegins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole, log := logOf(t)
		var parts State
		for i := 0; i < len(log); {
			i = max(0, i-rapid.IntRange(0, 5).Draw(t, "again"))
			n := rapid.IntRange(6, 12).Draw(t, "part")
			for _, e := range log[i:min(i+n, len(log))] {
				if _, err := parts.Fold(e); err != nil {
					t.Fatal(err)
				}
			}
			i += n
			switch rapid.IntRange(0, 2).Draw(t, "then") {
			case 0:
				parts = throughRecord(t, &parts)
			case 1: // a crash: what was folded since the record is folded again
				record := throughRecord(t, &parts)
				for _, e := range log[:min(i, len(log))] {
					if applied, err := record.Fold(e); err != nil || applied {
						t.Fatalf("an entry that the record holds: applied %v, %v", applied, err)
					}
				}
				parts = record
			}
		}
		if !reflect.DeepEqual(whole, parts) {
			t.Fatalf("whole %+v, in parts %+v", whole, parts)
		}
	})
}

// The next leader decides as the one before it would have, whatever it read the
// stream from (I5).
func TestRecordDecidesAsTheMemoryDid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole, log := logOf(t)
		back := throughRecord(t, &whole)
		now := 20_000*day + stream.Millis(rapid.Int64Range(0, int64(30*day)).Draw(t, "now"))
		for range 50 {
			e := log[rapid.IntRange(0, len(log)-1).Draw(t, "entry")]
			b := stream.Producer{ID: ulidOf(now - stream.Millis(rapid.IntRange(0, 10_000).Draw(t, "age")))}
			if e.Chunk != nil && rapid.Bool().Draw(t, "known") {
				b = e.Chunk.Batches[rapid.IntRange(0, len(e.Chunk.Batches)-1).Draw(t, "batch")].Producer
				b.Batch += rapid.Uint64Range(0, 2).Draw(t, "ahead")
				b.Epoch = rapid.Uint64Range(0, 1).Draw(t, "epoch")
			}
			v, dup, expected := whole.Producers.Check(b, now)
			if v2, dup2, expected2 := back.Producers.Check(b, now); v2 != v || dup2 != dup || expected2 != expected {
				t.Fatalf("%+v: %d, %+v, %d from memory and %d, %+v, %d from the record", b, v, dup, expected, v2, dup2, expected2)
			}
		}
	})
}
