package reader

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// verified returns what a verification of the stream finds, by kind, and its
// last report.
func (w *world) verified() (map[string][]*novapb.VerifyFinding, *novapb.VerifyResponse) {
	w.t.Helper()
	v := &verifyStream{ctx: w.ctx()}
	if err := w.svc.VerifyStream(&readerpb.VerifyStreamRequest{Bucket: "b", Stream: "s"}, v); err != nil {
		w.t.Fatal(err)
	}
	found := map[string][]*novapb.VerifyFinding{}
	for _, p := range v.got {
		for _, f := range p.GetFindings() {
			found[f.GetKind()] = append(found[f.GetKind()], f)
		}
	}
	last := v.got[len(v.got)-1]
	if !last.GetDone() {
		w.t.Error("not done")
	}
	return found, last
}

// verifiable is settledRecords whose first two runs are named by a page, with a
// run of two frames behind it: records 0, 1..2, 3..9, and 10 in a slot.
func verifiable(t *testing.T) (*world, *led) {
	t.Helper()
	w, s := tenRecords(t, Config{Patience: 20 * time.Millisecond})
	w.svc.retry = time.Millisecond
	w.settle(s, 1, settling{})
	w.settle(s, 1, settling{others: 1})
	w.paged(s)
	w.settle(s, 2, settling{others: 2})
	w.learn(s)
	w.chunk(s, "record 10")
	return w, s
}

// Verification reads each settled run, page and footer from storage itself, and
// names what it finds, each once.
func TestVerifyFindsEachDamageOfSettledRecords(t *testing.T) {
	flip := func(object func(s *led) string, at func(s *led) uint64) func(*world, *led) {
		return func(w *world, s *led) {
			i := at(s)
			w.rewritten(object(s), func(b []byte) []byte {
				if i > uint64(len(b)) {
					i = uint64(len(b)) - 30 // in the footer
				}
				b[i] ^= 1
				return b
			})
		}
	}
	run := func(s *led) string { return s.head.GetRefs()[0].GetObject() }
	page := func(s *led) string { return s.head.GetPages()[0].GetObject() }
	for name, c := range map[string]struct {
		breakIt func(w *world, s *led)
		kind    string
		records uint64 // that are checked all the same
	}{
		"nothing":          {func(*world, *led) {}, "", 11},
		"nothing, trimmed": {func(w *world, s *led) { w.trim(s, 2, false) }, "", 9},
		"the cache":        {func(w *world, _ *led) { w.cache = nil }, "", 11},
		"a frame":          {flip(run, func(s *led) uint64 { return s.head.GetRefs()[0].GetOffset() + 4 }), "checksum", 8},
		"an index":         {flip(run, func(s *led) uint64 { return s.head.GetRefs()[0].GetIndexOffset() + 4 }), "checksum", 4},
		"a footer":         {flip(run, func(*led) uint64 { return 1 << 40 }), "checksum", 11},
		"a page":           {flip(page, func(*led) uint64 { return 20 }), "checksum", 8},
		"an object": {func(w *world, s *led) {
			if err := w.objects.Delete(context.Background(), run(s)); err != nil {
				t.Error(err)
			}
		}, "missing", 4},
		"a page's object": {func(w *world, s *led) {
			if err := w.objects.Delete(context.Background(), page(s)); err != nil {
				t.Error(err)
			}
		}, "missing", 8},
		"a slot": {func(w *world, s *led) {
			if err := w.objects.Delete(context.Background(), chain.SlotKey(s.chain, 4)); err != nil {
				t.Error(err)
			}
		}, "missing", 10},
		"the head's end": {func(w *world, s *led) {
			w.change(s, func() {
				s.head = proto.CloneOf(s.head)
				s.head.Refs = nil
			})
		}, "ref", 1},
		"the head's begin": {func(w *world, s *led) {
			w.change(s, func() {
				s.head = proto.CloneOf(s.head)
				s.head.Pages = nil
			})
		}, "ref", 8},
		"the leader's hash": {func(_ *world, s *led) { s.hash++ }, "content_hash", 11},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, s := verifiable(t)
				c.breakIt(w, s)
				found, last := w.verified()
				if c.kind == "" && len(found) > 0 || c.kind != "" && (len(found) != 1 || len(found[c.kind]) != 1) {
					t.Errorf("found %v, want one %q", found, c.kind)
				}
				if last.GetRecords() != c.records {
					t.Errorf("%d records checked, want %d", last.GetRecords(), c.records)
				}
				if c.kind == "" && last.GetSettledRecords() != c.records-1 {
					t.Errorf("%d settled records checked", last.GetSettledRecords())
				}
			})
		})
	}
}

// Whatever a ref says that is not so is found.
func TestVerifyFindsRefsThatLie(t *testing.T) {
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, s, _ := settledRecords(t, Config{Patience: 20 * time.Millisecond})
				w.change(s, func() {
					s.head = proto.CloneOf(s.head)
					lie(w, s, s.head)
				})
				found, _ := w.verified()
				if len(found["ref"]) == 0 {
					t.Errorf("found %v", found)
				}
			})
		})
	}
}

// What is trimmed, rewritten or settled while it is verified is no finding.
func TestVerifyGoesOnWhenThingsMove(t *testing.T) {
	for name, move := range map[string]func(w *world, s *led){
		"a trim": func(w *world, s *led) { w.trim(s, 4, true) },
		"a rewrite": func(w *world, s *led) {
			w.rewrite(s, 2, settling{merge: true})
		},
		"settling": func(w *world, s *led) { w.settle(s, 1, settling{}); w.learn(s) },
		"an old head": func(_ *world, s *led) {
			h := &indexpb.Head{StreamId: s.id.String(), Refs: s.head.GetRefs()[:1]}
			s.old = []*indexpb.Head{h, h}
		},
	} {
		for _, at := range []string{"the head", "an object"} {
			t.Run(name+" at "+at, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, s, _ := settledRecords(t, Config{})
					var once sync.Once
					hook := func() { once.Do(func() { move(w, s) }) }
					if at == "the head" {
						w.onHead = hook
					} else {
						w.objects.Script(fault.Rule{Op: fault.GetRange, Nth: 3, Hook: func(context.Context, fault.Op, string) error {
							hook()
							return nil
						}})
					}
					if found, _ := w.verified(); len(found) > 0 {
						t.Errorf("found %v", found)
					}
				})
			})
		}
	}
}
