package sequencer

import (
	"context"
	"slices"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

// What a settler does, without objects: heads are folded, the chain's settled_to
// moves, directories go.

// foldInto folds entries over a head and has it name where their records are.
func (w *world) foldInto(h *indexpb.Head, log []head.Entry) {
	w.t.Helper()
	s := head.Read(h)
	first, hash := s.Tail, s.Hash
	for _, e := range log {
		if _, err := s.Fold(e); err != nil {
			w.t.Fatalf("stream %s is settled over a gap: %v", h.GetStreamId(), err)
		}
	}
	s.Write(h)
	if s.Tail == first {
		return
	}
	if len(h.GetRefs()) == 0 {
		h.Refs = []*indexpb.Ref{{Object: "settled/" + stream.NewAttemptID().String(), FirstSeq: uint64(first), HashBefore: uint64(hash), Frames: 1, Length: 1}}
	}
	ref := h.GetRefs()[0]
	ref.NextSeq, ref.LastTimestamp, ref.HashAfter = uint64(s.Tail), int64(s.LastTimestamp), uint64(s.Hash)
}

// span is slots of one chain that are being settled.
type span struct {
	w     *world
	chain *memChain
	to    uint64
}

// absorbed has a chain absorbed up to its end, and returns the span of all that
// may be settled by the order between chains, up to a slot. It is what a settler
// would take; nil if that is nothing.
func (w *world) span(chain string, upTo uint64) *span {
	w.t.Helper()
	ctx := context.Background()
	w.writer.mu.Lock()
	c := w.writer.chains[chain]
	end := uint64(len(c.slots))
	w.writer.mu.Unlock()
	if _, err := w.writer.AbsorbTo(ctx, &chainwriterpb.AbsorbToRequest{ChainId: chain, To: min(end, upTo)}); err != nil {
		w.t.Fatal(err)
	}
	record := w.chainRecord(chain)
	out := &span{w: w, chain: c, to: record.GetSettledTo()}
	for out.to < min(record.GetAbsorbedTo(), upTo) && w.inOrderOfChains(c, record.GetSettledTo(), out.to) {
		out.to++
	}
	if out.to == record.GetSettledTo() {
		return nil
	}
	return out
}

func (w *world) chainRecord(chain string) *indexpb.Chain {
	w.t.Helper()
	res, err := w.index.GetChain(context.Background(), &indexpb.GetChainRequest{ChainId: chain})
	if err != nil {
		w.t.Fatal(err)
	}
	return res.GetChain()
}

func (w *world) bindings() []*indexpb.Binding {
	w.t.Helper()
	r, _, err := w.writer.index.GetShard(context.Background(), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return r.GetBindings()
}

// inOrderOfChains reports whether the entry of a slot may be settled: the segments
// of its shard's log before its own one are.
func (w *world) inOrderOfChains(c *memChain, from, slot uint64) bool {
	w.t.Helper()
	w.writer.mu.Lock()
	e := c.slots[slot]
	w.writer.mu.Unlock()
	if e.GetKind() == chainwriterpb.EntryKind_ENTRY_KIND_FENCE {
		return true
	}
	bindings, own := w.bindings(), -1
	for i, b := range bindings {
		if b.GetEpoch() <= e.GetEpoch() {
			own = i
		}
	}
	if own < 0 || bindings[own].GetChainId() != c.id.String() {
		return false
	}
	for _, b := range bindings[:own] {
		done := w.chainRecord(b.GetChainId()).GetSettledTo()
		if b.GetChainId() == c.id.String() {
			done = slot
		}
		if !b.GetCutKnown() || done < b.GetCut() {
			return false
		}
	}
	return true
}

// settle is all of it: nothing of the span is left but its slots.
func (s *span) settle() {
	s.fold()
	s.advance()
	s.discard()
}

// fold folds the heads of all streams that have entries in the span.
func (s *span) fold() {
	s.w.t.Helper()
	logs := map[string][]head.Entry{}
	s.w.writer.mu.Lock()
	for _, e := range s.chain.slots[:s.to] {
		if e.GetKind() == chainwriterpb.EntryKind_ENTRY_KIND_FENCE {
			continue
		}
		he, err := foldable(e)
		if err != nil {
			s.w.t.Error(err)
		}
		id := stream.ID(e.GetStreamId()).String()
		logs[id] = append(logs[id], he)
	}
	s.w.writer.mu.Unlock()
	for id, log := range logs {
		for {
			res, err := s.w.index.GetHead(context.Background(), &indexpb.GetHeadRequest{StreamId: id})
			if err != nil {
				s.w.t.Fatal(err)
			}
			if res.GetHead().GetQuarantine() != "" {
				break
			}
			s.w.foldInto(res.GetHead(), log)
			if _, err = s.w.writer.index.PutHead(context.Background(), res.GetHead(), res.GetVersion()); err == nil {
				break
			}
			if !catalog.IsConflict(err) {
				s.w.t.Fatal(err)
			}
		}
	}
}

// advance moves the chain's settled_to.
func (s *span) advance() {
	s.w.t.Helper()
	if _, err := s.w.writer.index.UpdateChain(context.Background(), s.chain.id.String(), func(r *indexpb.Chain) (bool, error) {
		r.SettledTo = max(r.GetSettledTo(), s.to)
		return true, nil
	}); err != nil {
		s.w.t.Fatal(err)
	}
}

// discard deletes the span's directories.
func (s *span) discard() {
	s.w.writer.mu.Lock()
	defer s.w.writer.mu.Unlock()
	s.chain.gone = max(s.chain.gone, s.to)
}

// settleAll settles all that may be settled of all chains.
func (w *world) settleAll() {
	w.t.Helper()
	for again := true; again; {
		again = false
		for _, chain := range w.writer.chainIDs() {
			if s := w.span(chain, 1<<40); s != nil {
				s.settle()
				again = true
			}
		}
	}
}

// chainIDs returns all chains, the oldest first.
func (w *writer) chainIDs() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for id := range w.chains {
		out = append(out, id)
	}
	slices.SortFunc(out, func(a, b string) int { return w.chains[a].nth - w.chains[b].nth })
	return out
}

func foldable(e *chainwriterpb.Entry) (head.Entry, error) {
	out := head.Entry{
		Position: stream.Position{Epoch: stream.Epoch(e.GetEpoch()), Entry: stream.EntryNo(e.GetEntryNo())},
		Kind:     bundleKind(e.GetKind()), Timestamp: stream.Millis(e.GetTimestamp()), Argument: e.GetBody(),
	}
	if e.GetKind() != chainwriterpb.EntryKind_ENTRY_KIND_CHUNK {
		return out, nil
	}
	h, _, err := chunk.ParseHeader(e.GetBody())
	out.Chunk, out.Argument = &h, nil
	return out, err
}

// wantReadable reads all of a stream as readers do: what is settled through its
// head, the rest at the coordinates that the leader gives. All of [trim, tail) must
// be there.
func (l *leader) wantReadable(d *indexpb.StreamDescriptor, trim, tail uint64) {
	l.w.t.Helper()
	for at := trim; at < tail; {
		res, err := l.Fetch(l.w.t.Context(), &sequencerpb.FetchRequest{Stream: key(d), Start: &sequencerpb.FetchRequest_Seq{Seq: at}, MaxBytes: 1 << 20})
		if err != nil {
			l.w.t.Fatalf("fetch %d: %v", at, err)
		}
		if res.GetState().GetTrim() != trim || res.GetState().GetTail() != tail || res.GetStartSeq() != at {
			l.w.t.Fatalf("fetch %d: %v, want [%d, %d)", at, res, trim, tail)
		}
		if at < res.GetSettledTo() {
			h := l.w.headOf(d)
			if len(res.GetPieces()) > 0 || h.GetTail() < res.GetSettledTo() || len(h.GetRefs()) == 0 || h.GetRefs()[0].GetFirstSeq() > at {
				l.w.t.Fatalf("record %d is to be settled: %v; the head is %v", at, res, h)
			}
			at = h.GetTail()
			continue
		}
		if len(res.GetPieces()) == 0 {
			l.w.t.Fatalf("record %d is neither settled nor has it coordinates: %v", at, res)
		}
		for i, p := range res.GetPieces() {
			if p.GetBaseSeq() > at || i > 0 && p.GetBaseSeq() != at {
				l.w.t.Fatalf("record %d: a hole before %v", at, p)
			}
			at = p.GetBaseSeq() + uint64(p.GetCount())
		}
	}
}

// moveTo has a leader leave its chain-writer for another, and waits for that.
func (l *leader) moveTo(from, to string) {
	l.w.t.Helper()
	writers := map[string]*writer{"writer": l.w.writer}
	for _, o := range l.w.writer.peers {
		writers[o.address[len("inproc:"):]] = o
	}
	l.w.announce(to, writers[to], nil)
	l.w.announce(from, writers[from], map[string]string{"draining": "yes"})
	eventually(l.w.t, "it writes to "+to, func() bool { return l.writesTo() == writers[to].address })
}

// segments describes the shard's bindings by the first letters given to chains.
func segments(bindings []*indexpb.Binding, names map[string]string) string {
	out := ""
	for _, b := range bindings {
		out += names[b.GetChainId()]
	}
	return out
}
