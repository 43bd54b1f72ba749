package reader

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// removal deletes a slot at the moment when it is first read, and changes the
// stream with it.
func removal(w *world, s *led, slot stream.Slot, change func()) fault.Rule {
	key := chain.SlotKey(s.chain, slot)
	var once sync.Once
	return fault.Rule{Op: fault.GetRange, Prefix: key, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		var err error
		once.Do(func() {
			err = w.objects.Delete(ctx, key)
			w.change(s, change)
		})
		return err
	}}
}

// replace puts other bytes in a slot.
func (w *world) replace(s *led, slot stream.Slot, f func([]byte) []byte) {
	w.t.Helper()
	key := chain.SlotKey(s.chain, slot)
	o, err := w.objects.Get(w.t.Context(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.objects.Delete(w.t.Context(), key); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.objects.PutIfAbsent(w.t.Context(), key, f(bytes.Clone(o.Body))); err != nil {
		w.t.Fatal(err)
	}
}

// A slot that is gone may have moved: the leader is asked again, and says where.
func TestVanishedSlotIsAskedForAgain(t *testing.T) {
	w, s := tenRecords(t, Config{})
	at := s.pieces[2].GetAt()
	w.objects.Script(removal(w, s, 2, func() {
		// As if rewritten elsewhere.
		in := chunk.Input{StreamID: s.id, BaseSeq: 3, HashBefore: hashBefore(t, s, 2), Batches: make([]chunk.InputBatch, 1)}
		for i, b := range numbered(3, 3) {
			in.Batches[0].Records = append(in.Batches[0].Records, stream.Record{Seq: stream.Seq(3 + i), Timestamp: stream.Millis(1040 + 10*i), Body: []byte(b)})
		}
		tail, hash := s.tail, s.hash
		w.put(s, in)
		last := len(s.pieces) - 1
		s.pieces[2].At = s.pieces[last].GetAt()
		s.pieces, s.lastTS = s.pieces[:last], s.lastTS[:last]
		s.tail, s.hash = tail, hash
	}))
	w.mustRead(&novapb.ReadRequest{}, 0, 10)
	if s.pieces[2].GetAt() == at {
		t.Error("nothing moved")
	}
}

func hashBefore(t *testing.T, s *led, piece int) stream.Hash {
	h, _, err := chunk.Decode(s.pieces[piece].GetChunk())
	if err != nil {
		t.Error(err)
	}
	return h.HashBefore
}

// One that stays away is not called lost: perhaps the leader is behind.
func TestSlotThatStaysAwayIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := tenRecords(t, Config{Patience: 250 * time.Millisecond})
		if err := w.objects.Delete(t.Context(), chain.SlotKey(s.chain, 1)); err != nil {
			t.Fatal(err)
		}
		_, err := w.read(&novapb.ReadRequest{})
		want(t, err, codes.Unavailable, reason.StorageDown)
		wantNoNames(t, err, s)
		if len(w.fetches) < 2 {
			t.Error("the leader was not asked again")
		}
		if !strings.Contains(w.log.String(), s.id.String()) {
			t.Error("nothing in the log")
		}
	})
}

func wantNoNames(t *testing.T, err error, s *led) {
	t.Helper()
	for _, secret := range []string{s.chain.String(), "chain/", "slot", "settled/", "page/"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the caller hears of objects: %v", err)
		}
	}
}

// Damage in storage is DATA_LOSS for the caller, who hears no names, and is
// found by object and range in the log (I10). The leader is asked once more
// before: the slot may be foreign because the chunk is elsewhere by now.
func TestDamageIsDataLoss(t *testing.T) {
	for name, damage := range map[string]func(s *led, b []byte) []byte{
		"a flipped bit": func(s *led, b []byte) []byte { b[s.pieces[1].GetAt().GetOffset()+70] ^= 4; return b },
		"cut short":     func(s *led, b []byte) []byte { return b[:s.pieces[1].GetAt().GetOffset()+20] },
		"a seal":        func(*led, []byte) []byte { return bundle.EncodeSeal(bundle.Seal{}) },
		"another chain's slot": func(_ *led, b []byte) []byte {
			other := bundle.NewBuilder(stream.NewChainID(), stream.NewFlightID(), stream.ProfileStandard)
			if _, _, err := other.Add(bundle.Entry{Kind: bundle.KindFence, Shard: 1, Epoch: 1}); err != nil {
				panic(err)
			}
			return append(other.Finish(1), b...)
		},
		"another stream's chunk": func(s *led, b []byte) []byte {
			other := s.pieces[1].GetAt()
			return foreign(b, int(other.GetOffset()), int(other.GetLength()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, s := tenRecords(t, Config{Patience: 50 * time.Millisecond})
				w.svc.retry = 20 * time.Millisecond
				w.replace(s, 1, func(b []byte) []byte { return damage(s, b) })
				_, err := w.read(&novapb.ReadRequest{})
				want(t, err, codes.DataLoss, reason.ChecksumMismatch)
				wantNoNames(t, err, s)
				if log := w.log.String(); !strings.Contains(log, chain.SlotKey(s.chain, 1)) || !strings.Contains(log, "offset=") || !strings.Contains(log, s.id.String()) {
					t.Errorf("the log does not say where: %s", log)
				}
				// What may stand there because the slot is gone is looked at for longer.
				if n := len(w.fetches); n < 2 || n > 2 && name != "a seal" && name != "another chain's slot" || n == 2 && name == "a seal" {
					t.Errorf("the leader was asked %d times", n)
				}
				// What is whole is served.
				w.mustRead(&novapb.ReadRequest{Start: atSeq(3)}, 3, 7)
			})
		})
	}
}

// foreign puts an intact entry of another stream over the one at offset.
func foreign(b []byte, offset, length int) []byte {
	e, err := bundle.ParseEntry(b[offset : offset+length])
	if err != nil {
		panic(err)
	}
	h, records, err := chunk.Decode(e.Body)
	if err != nil {
		panic(err)
	}
	e.StreamID = stream.NewID()
	e.Body, _, err = chunk.Encode(nil, chunk.Input{StreamID: e.StreamID, BaseSeq: h.BaseSeq, HashBefore: h.HashBefore, Batches: []chunk.InputBatch{{Records: records}}})
	if err != nil {
		panic(err)
	}
	builder := bundle.NewBuilder(stream.NewChainID(), stream.NewFlightID(), stream.ProfileStandard)
	at, n, err := builder.Add(e)
	if err != nil || int(n) != length {
		panic("another length")
	}
	copy(b[offset:], builder.Finish(0)[at:at+n])
	return b
}

// What moved between two looks is no damage.
func TestForeignSlotMayHaveMoved(t *testing.T) {
	w, s := tenRecords(t, Config{})
	w.replace(s, 1, func([]byte) []byte { return bundle.EncodeSeal(bundle.Seal{}) })
	asked := 0
	good := s.pieces[1]
	w.objects.Script(fault.Rule{Op: fault.GetRange, Prefix: chain.SlotKey(s.chain, 1), Hook: func(context.Context, fault.Op, string) error {
		if asked++; asked == 1 {
			w.change(s, func() { // the leader knows it only after its first answer
				body := good.GetChunk()
				b := bundle.NewBuilder(s.chain, stream.NewFlightID(), stream.ProfileStandard)
				offset, length, err := b.Add(bundle.Entry{Kind: bundle.KindChunk, Shard: 1, Epoch: 2, StreamID: s.id, Body: body})
				if err != nil {
					t.Error(err)
				}
				if _, err := w.objects.PutIfAbsent(context.Background(), chain.SlotKey(s.chain, 99), b.Finish(99)); err != nil {
					t.Error(err)
				}
				good.At.Slot, good.At.Offset, good.At.Length = 99, offset, length
			})
		}
		return nil
	}})
	w.mustRead(&novapb.ReadRequest{}, 0, 10)
	if asked == 0 {
		t.Error("the foreign slot was not looked at")
	}
}

// Chunks that are whole each for itself but do not follow each other are not
// returned: a gap, and a chunk of another history (I1, I10).
func TestChunksMustFollowEachOther(t *testing.T) {
	for name, breakIt := range map[string]func(w *world, s *led){
		"the first is missing": func(_ *world, s *led) { s.pieces = s.pieces[1:] },
		"a gap":                func(_ *world, s *led) { s.pieces = append(s.pieces[:1:1], s.pieces[2:]...) },
		"another history": func(w *world, s *led) {
			in := chunk.Input{StreamID: s.id, BaseSeq: 10, HashBefore: s.hash + 1, Batches: []chunk.InputBatch{{Records: []stream.Record{{Seq: 10, Timestamp: 5000, Body: []byte("x")}}}}}
			w.put(s, in)
		},
	} {
		for _, window := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				w, s := tenRecords(t, Config{})
				w.window = window
				w.change(s, func() { breakIt(w, s) })
				_, err := w.read(&novapb.ReadRequest{})
				want(t, err, codes.DataLoss, reason.ChecksumMismatch)
				wantNoNames(t, err, s)
			})
		}
	}
}

// The leader's copy of a chunk may be damaged on its way, the cache may be down
// or hold damaged bytes: what is stored counts.
func TestStorageIsAskedWhenOthersFail(t *testing.T) {
	for name, arm := range map[string]func(w *world, s *led){
		"the leader's copy": func(w *world, s *led) {
			w.window = true
			for _, p := range s.pieces {
				p.Chunk[len(p.GetChunk())-3] ^= 1
			}
		},
		"the cache is down": func(w *world, _ *led) {
			w.cache = func(*cachepb.ReadRangeResponse) error { return reason.New(codes.Unavailable, "", "down") }
		},
		"the cache is wrong": func(w *world, _ *led) {
			w.cache = func(res *cachepb.ReadRangeResponse) error { res.Data[len(res.GetData())/2] ^= 1; return nil }
		},
		"the cache is short": func(w *world, _ *led) {
			w.cache = func(res *cachepb.ReadRangeResponse) error { res.Data = res.GetData()[1:]; return nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, s := tenRecords(t, Config{})
			w.change(s, func() { arm(w, s) })
			w.mustRead(&novapb.ReadRequest{}, 0, 10)
		})
	}
}

func TestStorageIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := tenRecords(t, Config{})
		w.cache = func(*cachepb.ReadRangeResponse) error { return reason.New(codes.Unavailable, "", "down") }
		w.objects.Script(fault.Rule{Op: fault.GetRange, Do: fault.FailBefore})
		_, err := w.read(&novapb.ReadRequest{})
		want(t, err, codes.Unavailable, reason.StorageDown)
		wantNoNames(t, err, s)

		w.objects.Clear()
		w.objects.Script(fault.Rule{Op: fault.GetRange, Do: fault.Hang})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = w.svc.Read(ctx, &novapb.ReadRequest{Bucket: "b", Stream: "s"})
		want(t, err, codes.DeadlineExceeded, reason.StorageDown)
		wantNoNames(t, err, s)
	})
}

// verifyStream collects what VerifyStream sends.
type verifyStream struct {
	readerpb.ReaderService_VerifyStreamServer
	ctx context.Context
	got []*novapb.VerifyResponse
}

func (v *verifyStream) Context() context.Context { return v.ctx }

func (v *verifyStream) Send(m *readerpb.VerifyStreamResponse) error {
	v.got = append(v.got, m.GetProgress())
	return nil
}

// Verification looks at storage itself and names what it finds.
func TestVerifyFindsEachDamage(t *testing.T) {
	for kind, breakIt := range map[string]func(w *world, s *led){
		"": func(*world, *led) {},
		"missing": func(w *world, s *led) {
			if err := w.objects.Delete(context.Background(), chain.SlotKey(s.chain, 1)); err != nil {
				t.Error(err)
			}
		},
		"checksum": func(w *world, s *led) {
			w.replace(s, 1, func(b []byte) []byte { b[s.pieces[1].GetAt().GetOffset()+70] ^= 4; return b })
		},
		"gap":          func(w *world, s *led) { s.pieces = append(s.pieces[:1:1], s.pieces[2:]...) },
		"content_hash": func(_ *world, s *led) { s.hash++ },
	} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, s := tenRecords(t, Config{Patience: 50 * time.Millisecond})
				w.window = true // which is not what is verified
				breakIt(w, s)
				v := &verifyStream{ctx: w.ctx()}
				if err := w.svc.VerifyStream(&readerpb.VerifyStreamRequest{Bucket: "b", Stream: "s"}, v); err != nil {
					t.Fatal(err)
				}
				found := map[string]bool{}
				for _, p := range v.got {
					for _, f := range p.GetFindings() {
						found[f.GetKind()] = true
					}
				}
				if last := v.got[len(v.got)-1]; !last.GetDone() {
					t.Error("not done")
				} else if kind == "" && (len(found) > 0 || last.GetRecords() != 10) {
					t.Errorf("a whole stream: %v, %d records", found, last.GetRecords())
				}
				if kind != "" && !found[kind] {
					t.Errorf("found %v, not %s", found, kind)
				}
			})
		})
	}
}
