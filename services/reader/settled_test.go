package reader

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// settledRecords is tenRecords of which the first three chunks, records 0..5, are
// in a run each, and the last one is in a slot.
func settledRecords(t *testing.T, cfg Config) (*world, *led, []*indexpb.Ref) {
	t.Helper()
	w, s := tenRecords(t, cfg)
	w.svc.retry = time.Millisecond
	var refs []*indexpb.Ref
	for range 3 {
		refs = append(refs, w.settle(s, 1, settling{others: 1}))
	}
	w.learn(s)
	return w, s, refs
}

// A head that does not reach what the leader knows to be settled is an old read,
// also one that is not there; it is read again, never trusted (I2).
func TestOldHeadsAreReadAgain(t *testing.T) {
	for name, old := range map[string]func(h *indexpb.Head) []*indexpb.Head{
		"without the last ref": func(h *indexpb.Head) []*indexpb.Head {
			h = proto.CloneOf(h)
			h.Tail, h.Refs = h.GetRefs()[2].GetFirstSeq(), h.GetRefs()[:2]
			return []*indexpb.Head{h, h, h}
		},
		"without any ref": func(h *indexpb.Head) []*indexpb.Head { return []*indexpb.Head{{StreamId: h.GetStreamId()}} },
		"not there":       func(*indexpb.Head) []*indexpb.Head { return []*indexpb.Head{nil, nil} },
	} {
		t.Run(name, func(t *testing.T) {
			for _, req := range []*novapb.ReadRequest{{}, {Start: atSeq(4)}, {Start: &novapb.ReadRequest_Timestamp{Timestamp: 1050}}} {
				w, s, _ := settledRecords(t, Config{})
				w.change(s, func() { s.old = old(s.head) })
				first := 0
				if req.GetStart() != nil {
					first = 4
				}
				w.mustRead(req, first, 10-first)
				if len(s.old) != 0 {
					t.Error("the old head was not read")
				}
			}
		})
	}
}

// A head that stays old makes reads unavailable, with nothing of it returned.
func TestHeadThatStaysOldIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s, _ := settledRecords(t, Config{Patience: 30 * time.Millisecond})
		w.change(s, func() { s.head = &indexpb.Head{StreamId: s.id.String(), Tail: 3, Refs: s.head.GetRefs()[:2]} })
		for _, req := range []*novapb.ReadRequest{{}, {Start: atSeq(1)}, {Start: &novapb.ReadRequest_Timestamp{Timestamp: 1020}}} {
			_, err := w.read(req)
			want(t, err, codes.Unavailable, reason.StorageDown)
			wantNoNames(t, err, s)
		}
		w.mustRead(&novapb.ReadRequest{Start: atSeq(6)}, 6, 4) // what needs no head
	})
}

// The head is read once for many reads, but not for long, and whatever leads
// nowhere is read again at once.
func TestHeadsAreKeptForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s, _ := settledRecords(t, Config{})
		for range 5 {
			w.mustRead(&novapb.ReadRequest{}, 0, 10)
		}
		if w.heads != 1 {
			t.Errorf("the head was read %d times", w.heads)
		}
		w.rewrite(s, 3, settling{merge: true})
		w.mustRead(&novapb.ReadRequest{}, 0, 10)
		if w.heads != 2 {
			t.Errorf("the head was read %d times", w.heads)
		}
		w.paged(s)
		w.svc.known.heads.InvalidateAll()
		w.mustRead(&novapb.ReadRequest{}, 0, 10)
		before := w.cached
		w.mustRead(&novapb.ReadRequest{}, 0, 10)
		if n := w.cached - before; n != 2 {
			t.Errorf("%d parts read, want a frame and a slot, and no page", n)
		}
	})
}

// removes deletes an object at its first read, and lets change happen with it.
func (w *world) removes(object string, change func()) {
	var once sync.Once
	w.objects.Script(fault.Rule{Op: fault.GetRange, Prefix: object, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		var err error
		once.Do(func() {
			err = w.objects.Delete(ctx, object)
			change()
		})
		return err
	}})
}

// An object that is gone was rewritten, or what it held was trimmed: the head and
// the leader say so.
func TestGoneObjectsAreLookedForAnew(t *testing.T) {
	t.Run("rewritten", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, s, refs := settledRecords(t, Config{Patience: headLife / 2})
			joined := w.run(s.id, [][]byte{w.frameOf(refs[0]), w.frameOf(refs[1])}, settling{})
			w.removes(refs[1].GetObject(), func() {
				w.change(s, func() {
					h := proto.CloneOf(s.head)
					h.Refs = append([]*indexpb.Ref{joined}, h.GetRefs()[2:]...)
					s.head = h
				})
			})
			w.mustRead(&novapb.ReadRequest{}, 0, 10)
		})
	})
	t.Run("trimmed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, s, refs := settledRecords(t, Config{Patience: headLife / 2})
			w.removes(refs[0].GetObject(), func() { w.trim(s, 4, true) })
			_, err := w.read(&novapb.ReadRequest{Start: atSeq(0)})
			want(t, err, codes.OutOfRange, reason.Trimmed)
			w.mustRead(&novapb.ReadRequest{}, 4, 6)
		})
	})
	t.Run("a page", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, s, _ := settledRecords(t, Config{Patience: headLife / 2})
			w.paged(s)
			page := s.head.GetPages()[0]
			h := proto.CloneOf(s.head)
			h.Pages, h.Refs = nil, nil
			h.Refs = append(h.Refs, w.pageBody(s, page).GetRefs()...)
			w.removes(page.GetObject(), func() { w.change(s, func() { s.head = h }) })
			w.mustRead(&novapb.ReadRequest{}, 0, 10)
		})
	})
	t.Run("for good", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, s, refs := settledRecords(t, Config{Patience: 30 * time.Millisecond})
			if err := w.objects.Delete(t.Context(), refs[1].GetObject()); err != nil {
				t.Fatal(err)
			}
			_, err := w.read(&novapb.ReadRequest{})
			want(t, err, codes.Unavailable, reason.StorageDown)
			wantNoNames(t, err, s)
			if !strings.Contains(w.log.String(), refs[1].GetObject()) {
				t.Errorf("the log does not say what is gone: %s", w.log)
			}
			w.mustRead(&novapb.ReadRequest{CountPresence: &novapb.ReadRequest_Count{Count: 1}}, 0, 1)
			w.mustRead(&novapb.ReadRequest{Start: atSeq(3)}, 3, 7)
		})
	})
}

func (w *world) frameOf(r *indexpb.Ref) []byte {
	w.t.Helper()
	o, err := w.objects.Get(w.t.Context(), r.GetObject())
	if err != nil {
		w.t.Fatal(err)
	}
	return o.Body[r.GetOffset() : r.GetOffset()+r.GetLength()]
}

func (w *world) pageBody(s *led, p *indexpb.RefPage) *indexpb.RefPageBody {
	w.t.Helper()
	body, err := w.svc.loadPage(s.id, fromStorage[*indexpb.RefPageBody])(w.t.Context(), p)
	if err != nil {
		w.t.Fatal(err)
	}
	return body
}

// A seek by time that retention overtakes, between any two calls, answers with the
// first retained record, never with nothing while there are records (C12).
func TestSeekThatRetentionOvertakes(t *testing.T) {
	for name, retain := range map[string]uint64{"into a run": 2, "to where slots begin": 6, "into the slots": 8, "all but what comes": 10} {
		for _, at := range []string{"the leader's answer", "the head", "the object"} {
			t.Run(name+" after "+at, func(t *testing.T) {
				w, s, refs := settledRecords(t, Config{})
				var once sync.Once
				overtake := func() {
					once.Do(func() {
						if retain == 10 {
							w.chunk(s, numbered(10, 2)...)
						}
						w.trim(s, retain, true)
					})
				}
				switch at {
				case "the leader's answer":
					w.onHead = overtake
				case "the head":
					w.mustRead(&novapb.ReadRequest{}, 0, 10) // the head is remembered
					w.cache = func(*cachepb.ReadRangeResponse) error { overtake(); return nil }
				case "the object":
					w.removes(refs[0].GetObject(), overtake)
				}
				res, err := w.read(&novapb.ReadRequest{Start: &novapb.ReadRequest_Timestamp{Timestamp: 1010}})
				if err != nil {
					t.Fatal(err)
				}
				if r := res.GetRecords(); len(r) == 0 || r[0].GetSeq() > retain {
					t.Errorf("%v", res)
				} else {
					w.wantRecords(r, int(r[0].GetSeq()), len(r))
				}
			})
		}
	}
}

// A time that the leader expects among settled records, and that is not there, is
// looked for from there on, and the question ends.
func TestSeekThatFindsNothingSettledGoesOn(t *testing.T) {
	w, s, _ := settledRecords(t, Config{})
	w.change(s, func() { s.settledTS = 99999 }) // it errs
	w.mustRead(&novapb.ReadRequest{Start: &novapb.ReadRequest_Timestamp{Timestamp: 1090}}, 8, 2)
	res := w.mustRead(&novapb.ReadRequest{Start: &novapb.ReadRequest_Timestamp{Timestamp: 5000}}, 10, 0)
	if res.GetTail() != 10 {
		t.Errorf("%v", res)
	}
	w.change(s, func() { s.trim = 9 })
	w.mustRead(&novapb.ReadRequest{Start: &novapb.ReadRequest_Timestamp{Timestamp: 1070}}, 9, 1)
}

// The same, while a trim passes what is settled.
func TestSeekThatFindsNothingSettledIsOvertaken(t *testing.T) {
	w, s, _ := settledRecords(t, Config{})
	w.change(s, func() { s.settledTS = 99999 })
	w.before = func(req *sequencerpb.FetchRequest) {
		if _, bySeq := req.GetStart().(*sequencerpb.FetchRequest_Seq); bySeq {
			w.trim(s, 9, false)
		}
	}
	w.mustRead(&novapb.ReadRequest{Start: &novapb.ReadRequest_Timestamp{Timestamp: 1075}}, 9, 1)
}

// A head that is ahead of the leader shows records that the leader's tail did not.
// A page is of the moment when the leader answered; a subscription goes on.
func TestHeadAheadOfTheLeader(t *testing.T) {
	w, s, _ := settledRecords(t, Config{})
	w.onHead = func() {
		w.onHead = nil
		w.chunk(s, numbered(10, 2)...)
		w.settle(s, 2, settling{})
		w.rewrite(s, 2, settling{merge: true}) // records 3..11 in one frame
	}
	if res := w.mustRead(&novapb.ReadRequest{}, 0, 10); res.GetTail() != 10 || res.GetEndOfStream() {
		t.Error(res)
	}
	f := w.subscribe(&novapb.SubscribeRequest{}, 0)
	for f.next < 12 {
		m, err := f.receive()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetTail() < m.GetNextSeq() {
			t.Errorf("tail is %d below %d", m.GetTail(), m.GetNextSeq())
		}
	}
}

// A page of what is settled and what is not takes several answers of the leader. It
// says what was so at the first: nothing that was trimmed, appended or sealed
// since (I3).
func TestPageIsOfOneMoment(t *testing.T) {
	w, s, _ := settledRecords(t, Config{})
	asked := 0
	w.before = func(*sequencerpb.FetchRequest) {
		if asked++; asked == 2 {
			w.trim(s, 4, false)
			w.chunk(s, numbered(10, 2)...)
			w.change(s, func() { s.sealed = true })
		}
	}
	res := w.mustRead(&novapb.ReadRequest{Start: &novapb.ReadRequest_TailOffset{TailOffset: 8}}, 2, 8)
	if asked < 2 || res.GetFirstSeq() != 0 || res.GetTail() != 10 || res.GetEndOfStream() {
		t.Errorf("after %d answers: %v", asked, res)
	}
}

// Damage of settled bytes is DATA_LOSS, twice the same, with object and range in
// the log; what is whole, before, behind and of other streams, is served (I10, C21).
func TestDamageOfSettledRecordsIsDataLoss(t *testing.T) {
	flip := func(at uint64) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= 4; return b }
	}
	for name, c := range map[string]struct {
		arrange func(w *world, s *led) (object string, spoil func([]byte) []byte)
		from    int // what is whole again
	}{
		"a frame": {func(w *world, s *led) (string, func([]byte) []byte) {
			r := s.head.GetRefs()[1]
			return r.GetObject(), flip(r.GetOffset() + r.GetLength() - 3)
		}, 3},
		"a frame's header": {func(w *world, s *led) (string, func([]byte) []byte) {
			r := s.head.GetRefs()[1]
			return r.GetObject(), flip(r.GetOffset() + 9)
		}, 3},
		"cut short": {func(w *world, s *led) (string, func([]byte) []byte) {
			r := s.head.GetRefs()[1]
			return r.GetObject(), func(b []byte) []byte { return b[:r.GetOffset()+5] }
		}, 3},
		"cut before": {func(w *world, s *led) (string, func([]byte) []byte) {
			r := s.head.GetRefs()[1]
			return r.GetObject(), func(b []byte) []byte { return b[:r.GetOffset()] }
		}, 3},
		"an index": {func(w *world, s *led) (string, func([]byte) []byte) {
			w.rewrite(s, 2, settling{}) // records 1..5 in two frames
			r := s.head.GetRefs()[1]
			return r.GetObject(), flip(r.GetIndexOffset() + 9)
		}, 6},
		"a page": {func(w *world, s *led) (string, func([]byte) []byte) {
			w.paged(s)
			return s.head.GetPages()[0].GetObject(), flip(20)
		}, 6},
	} {
		eachWay(t, name, func(t *testing.T, whole bool) {
			w, s, _ := settledRecords(t, Config{})
			w.whole = whole
			other := w.create("other")
			w.chunk(other, numbered(0, 3)...)
			w.settle(other, 1, settling{})
			w.learn(other)
			object, spoil := c.arrange(w, s)
			w.rewritten(object, spoil)
			_, err := w.read(&novapb.ReadRequest{Start: atSeq(1)})
			want(t, err, codes.DataLoss, reason.ChecksumMismatch)
			wantNoNames(t, err, s)
			if log := w.log.String(); !strings.Contains(log, object) || !strings.Contains(log, "offset=") || !strings.Contains(log, s.id.String()) {
				t.Errorf("the log does not say where: %s", log)
			}
			if len(w.fetches) != 2 {
				t.Errorf("the leader was asked %d times, want 2", len(w.fetches))
			}
			w.mustRead(&novapb.ReadRequest{Start: atSeq(uint64(c.from))}, c.from, 10-c.from)
			if name == "an index" {
				w.mustRead(&novapb.ReadRequest{}, 0, 1) // up to what is damaged
			}
			if name != "a page" {
				w.mustRead(&novapb.ReadRequest{CountPresence: &novapb.ReadRequest_Count{Count: 1}}, 0, 1)
			}
			res, err := w.svc.Read(w.ctx(), &novapb.ReadRequest{Bucket: "b", Stream: "other"})
			if err != nil {
				t.Fatal(err)
			}
			w.wantRecords(res.GetRecords(), 0, 3)
		})
	}
}

// rewritten replaces an object's bytes.
func (w *world) rewritten(object string, f func([]byte) []byte) {
	w.t.Helper()
	o, err := w.objects.Get(w.t.Context(), object)
	if err == nil {
		err = w.objects.Delete(w.t.Context(), object)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.putObject(object, f(o.Body))
}

// lies are heads that are intact but do not tell what the objects hold.
var lies = map[string]func(w *world, s *led, h *indexpb.Head){
	"the first record of a run": func(_ *world, _ *led, h *indexpb.Head) { h.Refs[1].FirstSeq, h.Refs[0].NextSeq = 2, 2 },
	"the end of a run":          func(_ *world, _ *led, h *indexpb.Head) { h.Refs[1].NextSeq, h.Refs[2].FirstSeq = 2, 2 },
	"its first time":            func(_ *world, _ *led, h *indexpb.Head) { h.Refs[1].FirstTimestamp++ },
	"its last time":             func(_ *world, _ *led, h *indexpb.Head) { h.Refs[1].LastTimestamp++ },
	"its hashes":                func(_ *world, _ *led, h *indexpb.Head) { h.Refs[1].HashBefore++; h.Refs[0].HashAfter++ },
	"its last hash":             func(_ *world, _ *led, h *indexpb.Head) { h.Refs[1].HashAfter++; h.Refs[2].HashBefore++ },
	"its length":                func(_ *world, _ *led, h *indexpb.Head) { h.Refs[1].Length++ },
	"no length":                 func(_ *world, _ *led, h *indexpb.Head) { h.Refs[1].Length = 0 },
	"too much length":           func(_ *world, _ *led, h *indexpb.Head) { h.Refs[1].Length = 1 << 40 },
	"its place":                 func(_ *world, _ *led, h *indexpb.Head) { h.Refs[1].Offset-- },
	"a place beyond all":        func(_ *world, _ *led, h *indexpb.Head) { h.Refs[1].Offset = 1 << 63 },
	"its frames":                func(_ *world, _ *led, h *indexpb.Head) { h.Refs[1].Frames = 2 },
	"its index":                 func(_ *world, _ *led, h *indexpb.Head) { h.Refs[1].Frames, h.Refs[1].IndexLength = 2, 0 },
	"a gap":                     func(_ *world, _ *led, h *indexpb.Head) { h.Refs = append(h.Refs[:1:1], h.Refs[2:]...) },
	"another stream's run":      func(_ *world, _ *led, h *indexpb.Head) { h.Refs[1].Offset, h.Refs[1].Run = 8, 0 },
	"another history": func(w *world, s *led, h *indexpb.Head) {
		// Whole, and right by its ref, but nothing that follows what is before it.
		body, _, err := chunk.Encode(nil, chunk.Input{StreamID: s.id, BaseSeq: 1, HashBefore: 77, Batches: []chunk.InputBatch{{Records: []stream.Record{
			{Seq: 1, Timestamp: 1020, Body: []byte("record 1")}, {Seq: 2, Timestamp: 1030, Body: []byte("record 2")},
		}}}})
		if err != nil {
			w.t.Fatal(err)
		}
		h.Refs[1] = w.run(s.id, [][]byte{body}, settling{})
	},
}

// Refs and what they lead to must be of one mind, whatever is whole by itself (I1, I10).
func TestRefsThatLieAreDamage(t *testing.T) {
	for name, lie := range lies {
		eachWay(t, name, func(t *testing.T, whole bool) {
			synctest.Test(t, func(t *testing.T) {
				w, s, _ := settledRecords(t, Config{Patience: 100 * time.Millisecond})
				w.whole = whole
				w.change(s, func() {
					s.head = proto.CloneOf(s.head)
					lie(w, s, s.head)
				})
				res, err := w.read(&novapb.ReadRequest{Start: atSeq(0)})
				if err == nil {
					// What the head says before the lie may be served.
					w.wantRecords(res.GetRecords(), 0, len(res.GetRecords()))
					_, err = w.read(&novapb.ReadRequest{Start: atSeq(uint64(len(res.GetRecords())))})
				}
				if name == "a gap" && reason.Code(err) == codes.Unavailable {
					return
				}
				want(t, err, codes.DataLoss, reason.ChecksumMismatch)
				wantNoNames(t, err, s)
			})
		})
	}
}

// A read that goes from settled records to those in slots compares the content
// hash across them (I10).
func TestSlotsContinueWhatIsSettled(t *testing.T) {
	eachWay(t, "", slotsContinueWhatIsSettled)
}

func slotsContinueWhatIsSettled(t *testing.T, whole bool) {
	w, s := tenRecords(t, Config{})
	w.whole = whole
	w.settle(s, 4, settling{})
	w.learn(s)
	w.change(s, func() {
		s.hash++ // what follows does not follow
	})
	w.chunk(s, numbered(10, 2)...)
	res := w.mustRead(&novapb.ReadRequest{CountPresence: &novapb.ReadRequest_Count{Count: 10}}, 0, 10)
	if res.GetNextSeq() != 10 {
		t.Fatal(res)
	}
	if _, err := w.read(&novapb.ReadRequest{}); err == nil {
		t.Error("records that do not follow each other are one page")
	} else {
		want(t, err, codes.DataLoss, reason.ChecksumMismatch)
	}
	want(t, w.subscribe(&novapb.SubscribeRequest{}, 0).fails(), codes.DataLoss, reason.ChecksumMismatch)
}

// The cache may be down, hold damaged bytes or be short, for frames, indexes and
// pages: what is stored counts.
func TestStorageIsAskedForSettledRecordsWhenTheCacheFails(t *testing.T) {
	for name, fails := range map[string]func(*cachepb.ReadRangeResponse) error{
		"down":  func(*cachepb.ReadRangeResponse) error { return reason.New(codes.Unavailable, "", "down") },
		"wrong": func(res *cachepb.ReadRangeResponse) error { res.Data[len(res.GetData())/2] ^= 1; return nil },
		"short": func(res *cachepb.ReadRangeResponse) error { res.Data = res.GetData()[1:]; return nil },
	} {
		eachWay(t, name, func(t *testing.T, whole bool) {
			w, s := tenRecords(t, Config{})
			w.whole = whole
			w.settle(s, 2, settling{others: 1})
			w.settle(s, 1, settling{others: 1})
			w.paged(s)
			w.learn(s)
			w.cache = fails
			w.mustRead(&novapb.ReadRequest{}, 0, 10)
		})
	}
}

// Each call of the store may fail, hang or lie, one at a time and all of a kind:
// a read returns what it should or says that it cannot, and never anything else.
func TestFaultsOfTheStoreInReadsOfSettledRecords(t *testing.T) {
	for _, do := range []fault.Action{fault.FailBefore, fault.Truncate, fault.Corrupt} {
		for _, nth := range []int{0, 1, 2, 3, 4, 5, 6} { // 0: all
			for _, cached := range []bool{true, false} {
				eachWay(t, fmt.Sprintf("%v %d, cache %v", do, nth, cached), func(t *testing.T, whole bool) {
					synctest.Test(t, func(t *testing.T) {
						w, s := tenRecords(t, Config{Patience: 100 * time.Millisecond, FetchAhead: 1})
						w.whole = whole
						w.svc.retry = time.Millisecond
						w.settle(s, 2, settling{others: 1})
						w.settle(s, 1, settling{others: 1})
						w.paged(s)
						w.learn(s)
						if !cached {
							w.cache = func(*cachepb.ReadRangeResponse) error { return reason.New(codes.Unavailable, "", "down") }
						}
						w.objects.Script(fault.Rule{Op: fault.GetRange, Nth: nth, Do: do})
						res, err := w.read(&novapb.ReadRequest{})
						if err == nil {
							w.wantRecords(res.GetRecords(), 0, len(res.GetRecords()))
							if nth > 0 && len(res.GetRecords()) == 0 {
								t.Error("nothing")
							}
							return
						}
						wantNoNames(t, err, s)
						if code := reason.Code(err); code != codes.Unavailable && (do == fault.FailBefore || code != codes.DataLoss) {
							t.Errorf("%v", err)
						}
						if nth > 0 && cached && do != fault.FailBefore {
							t.Errorf("one bad answer to the cache is an error: %v", err)
						}
					})
				})
			}
		}
	}
}

// An index that does not answer makes reads of settled records unavailable.
func TestIndexThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s, _ := settledRecords(t, Config{})
		w.mu.Lock()
		w.headErr = reason.New(codes.Unavailable, "", "no metastore")
		w.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := w.svc.Read(ctx, &novapb.ReadRequest{Bucket: "b", Stream: "s"})
		want(t, err, codes.Unavailable, "")
		wantNoNames(t, err, s)
		w.mustRead(&novapb.ReadRequest{Start: atSeq(6)}, 6, 4)
	})
}

// A subscription goes from pages to refs to slots to what comes, while more is
// settled, rewritten and trimmed behind and before it.
func TestSubscriptionPassesThroughSettledRecords(t *testing.T) {
	w, s := tenRecords(t, Config{})
	w.svc.retry = time.Millisecond
	w.settle(s, 1, settling{})
	w.settle(s, 1, settling{})
	w.paged(s)
	w.settle(s, 1, settling{others: 1})
	w.learn(s)
	f := w.subscribe(&novapb.SubscribeRequest{HeartbeatMs: 60000}, 0)
	f.upTo(10)
	// It waits while settling passes it.
	w.settle(s, 1, settling{})
	w.learn(s)
	w.chunk(s, numbered(10, 3)...)
	f.upTo(13)
	w.settle(s, 1, settling{})
	w.chunk(s, numbered(13, 2)...)
	w.settle(s, 1, settling{})
	w.rewrite(s, 2, settling{merge: true})
	w.learn(s)
	f.upTo(15)
	w.trim(s, 15, true)
	w.chunk(s, numbered(15, 1)...)
	f.upTo(16)
	if f.hash != uint64(s.hash) {
		t.Error("the content hash is not the leader's")
	}
}

// A slow subscriber that settling has passed goes on in what is settled.
func TestSlowSubscriberIsPassedBySettling(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.create("s")
	const n = 6
	for range n {
		w.chunk(s, strings.Repeat("y", 1<<20))
	}
	f := w.subscribe(&novapb.SubscribeRequest{}, 0)
	f.upTo(1)
	w.settle(s, n, settling{})
	w.learn(s)
	f.upTo(n)
}

// A small read of a large run fetches one frame and remembers the index; a large
// one has the cache read what follows.
func TestSmallReadsFetchLittle(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.create("s")
	const n = 12
	for i := range n {
		w.chunk(s, fmt.Sprint(i), string(incompressible(1000<<10)))
	}
	ref := w.settle(s, n, settling{})
	w.learn(s)
	read := func(req *novapb.ReadRequest) int {
		before := w.cached
		if _, err := w.read(req); err != nil {
			t.Fatal(err)
		}
		return w.cached - before
	}
	one := &novapb.ReadRequest_Count{Count: 1}
	if got := read(&novapb.ReadRequest{Start: atSeq(3), CountPresence: one}); got != 2 {
		t.Errorf("%d parts read for one record, want index and frame", got)
	}
	if got := read(&novapb.ReadRequest{Start: atSeq(5), CountPresence: one}); got != 1 {
		t.Errorf("%d parts read for one record, want one frame", got)
	}
	if got := read(&novapb.ReadRequest{Start: &novapb.ReadRequest_Timestamp{Timestamp: 1000 + 8*10}, CountPresence: one}); got > 2 {
		t.Errorf("%d parts read for one record by its time", got)
	}
	if got := read(&novapb.ReadRequest{Start: atSeq(10), BytesPresence: &novapb.ReadRequest_Bytes{Bytes: 100}}); got != 1 {
		t.Errorf("%d parts read for a hundred bytes, want one frame", got)
	}
	if len(w.ahead) != 0 {
		t.Errorf("small reads read ahead: %v", w.ahead)
	}
	read(&novapb.ReadRequest{})
	eventually(t, "what follows is read ahead", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.ahead) >= 4
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.ahead {
		if !strings.HasPrefix(a, ref.GetObject()+"@") {
			t.Error(a)
		}
	}
	// A page takes up to five frames, and five more are read ahead; the run has twelve.
	if len(w.ahead) > 10 {
		t.Errorf("%d steps are read ahead: %v", len(w.ahead), w.ahead)
	}
}

func incompressible(n int) []byte {
	b, x := make([]byte, n), uint64(n)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}

// Well compressed frames are not fetched beyond what a page can hold.
func TestCompressedFramesAreBounded(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.create("s")
	for range 60 {
		w.chunk(s, strings.Repeat("y", 256<<10))
	}
	w.settle(s, 60, settling{merge: true}) // frames of 256 or 512 KiB, a few hundred bytes each
	w.learn(s)
	before := w.cached
	if _, err := w.read(&novapb.ReadRequest{}); err != nil {
		t.Fatal(err)
	}
	if got := w.cached - before; got > 2*pageBytes/settled.FrameBytes+w.svc.cfg.FetchAhead {
		t.Errorf("%d parts read for a page", got)
	}
}

// What reads remember of heads, pages and indexes is bounded.
func TestWhatIsKnownOfSettledRecordsIsBounded(t *testing.T) {
	w := newWorld(t, Config{HistoryBytes: 64 << 10})
	for i := range 50 {
		s := w.create("s") // the name moves on
		w.svc.names.Invalidate("b", "s", s.id)
		for range 40 {
			w.chunk(s, numbered(int(s.tail), 1)...)
		}
		w.settle(s, 20, settling{})
		w.settle(s, 20, settling{})
		w.learn(s)
		w.svc.names.Invalidate("b", "s", s.id)
		if _, err := w.svc.Read(w.ctx(), &novapb.ReadRequest{Bucket: "b", Stream: "s", StreamId: s.id.String()}); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	w.svc.known.heads.CleanUp()
	w.svc.known.parts.CleanUp()
	if n := w.svc.known.heads.WeightedSize() + w.svc.known.parts.WeightedSize(); n > 64<<10 {
		t.Errorf("%d bytes", n)
	}
}
