package reader

import (
	"bytes"
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

func (w *world) getHead(id string, reply proto.Message) error {
	w.mu.Lock()
	w.heads++
	hook := w.onHead
	w.mu.Unlock()
	if hook != nil {
		hook()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.headErr != nil {
		return w.headErr
	}
	s := w.streams[id]
	head := s.head
	if len(s.old) > 0 {
		head, s.old = s.old[0], s.old[1:]
	}
	if head == nil {
		return reason.New(codes.NotFound, reason.RowNotFound, "no head")
	}
	proto.Merge(reply, &indexpb.GetHeadResponse{Head: head, Version: 1})
	return nil
}

// settling says how chunks are settled.
type settling struct {
	merge  bool // small chunks into large frames
	others int  // runs of other streams around it
	// spoil, if set, changes the object before it is put.
	spoil func(b []byte, runs []settled.Run)
}

// settle puts a run of the next n chunks that are not settled into an object, and
// names it in the head. The leader does not know it yet.
func (w *world) settle(s *led, n int, how settling) *indexpb.Ref {
	w.t.Helper()
	w.mu.Lock()
	if s.head == nil {
		s.head = &indexpb.Head{StreamId: s.id.String(), Shard: s.shard}
	}
	h := proto.CloneOf(s.head)
	from := slices.IndexFunc(s.pieces, func(p *sequencerpb.Piece) bool { return p.GetBaseSeq() >= h.GetTail() })
	var chunks [][]byte
	for _, p := range s.pieces[from : from+n] {
		next := p.GetBaseSeq() + uint64(p.GetCount())
		if next <= s.trim {
			// It is not stored any more, and nothing before it is named.
			h.Pages, h.Refs, h.DroppedTo = nil, nil, next
		} else {
			chunks = append(chunks, p.GetChunk())
		}
		d, _, err := chunk.Decode(p.GetChunk())
		if err != nil {
			w.t.Fatal(err)
		}
		h.Tail, h.LastTimestamp, h.ContentHash = next, int64(d.LastTimestamp), uint64(d.HashAfter)
	}
	w.mu.Unlock()
	var ref *indexpb.Ref
	if len(chunks) > 0 {
		ref = w.run(s.id, chunks, how)
		if err := history.Append(h, ref); err != nil {
			w.t.Fatal(err)
		}
		w.overflow(h)
	}
	w.change(s, func() { s.head = h })
	return ref
}

// overflow writes the pages of what a head cannot name itself.
func (w *world) overflow(h *indexpb.Head) {
	w.t.Helper()
	for body, replace := history.Overflow(h); body != nil; body, replace = history.Overflow(h) {
		b, key := history.EncodePage(body), "page/"+stream.NewAttemptID().String()
		w.putObject(key, b)
		replace(key, uint32(len(b)))
	}
}

// paged moves all refs of a head into a page, below the pages it has.
func (w *world) paged(s *led) {
	w.t.Helper()
	w.mu.Lock()
	h := proto.CloneOf(s.head)
	w.mu.Unlock()
	body := &indexpb.RefPageBody{StreamId: s.id.String(), Level: 1, Refs: h.GetRefs()}
	b, key := history.EncodePage(body), "page/"+stream.NewAttemptID().String()
	w.putObject(key, b)
	h.Refs, h.Pages = nil, append(h.Pages, history.PageOf(body, key, uint32(len(b))))
	w.change(s, func() { s.head = h })
}

func (w *world) putObject(key string, b []byte) {
	w.t.Helper()
	if _, err := w.objects.PutIfAbsent(context.Background(), key, b); err != nil {
		w.t.Fatal(err)
	}
}

// run puts a run of these chunks into an object and returns its ref.
func (w *world) run(id stream.ID, chunks [][]byte, how settling) *indexpb.Ref {
	w.t.Helper()
	b := settled.NewBuilder()
	add := func(frame []byte, h *chunk.Header) error { return b.Add(frame, h) }
	other := func() {
		body, h, err := chunk.Encode(nil, chunk.Input{StreamID: stream.NewID(), Batches: []chunk.InputBatch{{Records: []stream.Record{{Timestamp: 1, Body: []byte("another's")}}}}})
		if err != nil {
			w.t.Fatal(err)
		}
		b.Begin(h.StreamID)
		if err := b.Add(body, &h); err != nil {
			w.t.Fatal(err)
		}
	}
	for range how.others {
		other()
	}
	b.Begin(id)
	merger := settled.NewMerger(id, add)
	for _, c := range chunks {
		h, err := chunk.Check(c)
		if err == nil && how.merge {
			err = merger.Add(c)
		} else if err == nil {
			err = b.Add(c, &h)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	if err := merger.Flush(); err != nil {
		w.t.Fatal(err)
	}
	for range how.others {
		other()
	}
	out, runs := b.Finish()
	if how.spoil != nil {
		out = bytes.Clone(out)
		how.spoil(out, runs)
	}
	key := "settled/" + stream.NewAttemptID().String()
	w.putObject(key, out)
	r := &runs[how.others]
	return &indexpb.Ref{
		Object: key, Run: uint32(how.others), FirstSeq: uint64(r.First), NextSeq: uint64(r.Next),
		FirstTimestamp: int64(r.FirstTimestamp), LastTimestamp: int64(r.LastTimestamp),
		HashBefore: uint64(r.HashBefore), HashAfter: uint64(r.HashAfter), Offset: r.Offset, Length: r.Length, Frames: r.Frames,
		IndexOffset: r.IndexOffset, IndexLength: r.IndexLength,
	}
}

// learn has the leader see how far the stream is settled, and deletes the slots.
func (w *world) learn(s *led) {
	w.t.Helper()
	var gone []string
	w.change(s, func() {
		s.settled, s.settledTS = s.head.GetTail(), s.head.GetLastTimestamp()
		n := 0
		for ; n < len(s.pieces) && s.pieces[n].GetBaseSeq() < s.settled; n++ {
			at := s.pieces[n].GetAt()
			gone = append(gone, chain.SlotKey(stream.ChainID(at.GetChainId()), stream.Slot(at.GetSlot())))
		}
		s.pieces, s.lastTS = s.pieces[n:], s.lastTS[n:]
	})
	if err := w.objects.Delete(context.Background(), gone...); err != nil {
		w.t.Fatal(err)
	}
}

// trim trims a stream; with drop its head is trimmed too and what is dead deleted.
func (w *world) trim(s *led, to uint64, drop bool) {
	w.t.Helper()
	var gone []string
	w.change(s, func() {
		s.trim = max(s.trim, to)
		if !drop || s.head == nil {
			return
		}
		h := proto.CloneOf(s.head)
		load := func(ctx context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error) {
			o, err := w.objects.Get(ctx, p.GetObject())
			if err != nil {
				return nil, err
			}
			return history.DecodePage(o.Body, s.id)
		}
		refs, pages, err := history.Trim(context.Background(), load, h, stream.Seq(min(s.trim, h.GetTail())))
		if err != nil {
			w.t.Error(err)
			return
		}
		s.head = h
		for _, p := range pages {
			gone = append(gone, p.GetObject())
			err := history.WalkPage(context.Background(), load, p, func(r *indexpb.Ref) error {
				gone = append(gone, r.GetObject())
				return nil
			}, func(p *indexpb.RefPage) error {
				gone = append(gone, p.GetObject())
				return nil
			})
			if err != nil {
				w.t.Error(err)
			}
		}
		for _, r := range refs {
			gone = append(gone, r.GetObject())
		}
	})
	if err := w.objects.Delete(context.Background(), gone...); err != nil {
		w.t.Fatal(err)
	}
}

// rewrite joins the newest n refs of a head into one, and deletes their objects.
func (w *world) rewrite(s *led, n int, how settling) {
	w.t.Helper()
	w.mu.Lock()
	h := proto.CloneOf(s.head)
	w.mu.Unlock()
	at := len(h.GetRefs()) - n
	var chunks [][]byte
	var gone []string
	for _, r := range h.GetRefs()[at:] {
		o, err := w.objects.Get(context.Background(), r.GetObject())
		if err != nil {
			w.t.Fatal(err)
		}
		frames, err := w.svc.loadFrames(context.Background(), s.id, r, fromStorage[[]settled.Frame])
		if err != nil {
			w.t.Fatal(err)
		}
		for _, f := range frames {
			chunks = append(chunks, o.Body[f.Offset:f.Offset+uint64(f.Length)])
		}
		gone = append(gone, r.GetObject())
	}
	joined := w.run(s.id, chunks, how)
	joined.Generation++
	h.Refs = append(h.GetRefs()[:at], joined)
	w.change(s, func() { s.head = h })
	if err := w.objects.Delete(context.Background(), gone...); err != nil {
		w.t.Fatal(err)
	}
}
