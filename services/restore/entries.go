package restore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/directory"
	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// entry is an entry of a stream that the export does not know.
type entry struct {
	head.Entry

	chain string
	slot  uint64
}

// readDirectory adds a directory to the scan.
func (r *restore) readDirectory(ctx context.Context, row *indexpb.Directory) error {
	o, err := r.get(ctx, row.GetObject())
	if err != nil {
		return err
	}
	d, err := directory.InMemory(o.Body)
	if err != nil {
		return err
	}
	if d.Chain.String() != row.GetChainId() || uint64(d.From) != row.GetFrom() || uint64(d.To) != row.GetTo() {
		return errNoDirectory
	}
	s := r.scan
	for _, id := range d.Streams() {
		found, err := d.Stream(id)
		if errors.Is(err, directory.ErrCorrupt) {
			// It is quarantined when it is opened, for which it must be known.
			if _, is := r.source.streams[id]; !is {
				s.mu.Lock()
				s.hurt[id], s.unknown[id] = true, append(s.unknown[id], entry{})
				s.mu.Unlock()
			}
			r.damaged(ctx, "what a directory says of a stream is damaged", "directory", row.GetObject(), "stream", id.String(), "err", err)
			continue
		}
		if err != nil {
			return fmt.Errorf("stream %s: %w", id, err)
		}
		k, is := r.source.streams[id]
		for _, e := range found {
			at := stream.Position{Epoch: e.Epoch, Entry: e.EntryNo}
			switch {
			case !is:
				s.mu.Lock()
				s.unknown[id] = append(s.unknown[id], entry{
					Entry: head.Entry{Position: at, Kind: e.Kind, Timestamp: e.Timestamp, Chunk: e.Chunk, Argument: argument(&e)},
					chain: row.GetChainId(), slot: uint64(e.At.Slot),
				})
				s.mu.Unlock()
			case e.Kind == bundle.KindDelete && (k.folded.Epoch == 0 || k.folded.Less(at)):
				s.mu.Lock()
				s.deletes[id] = true
				s.mu.Unlock()
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range d.Epochs() {
		s.epochs[e.Shard] = append(s.epochs[e.Shard], placed{row.GetChainId(), e.Epoch, uint64(e.Slot), e.Next > 0})
	}
	return nil
}

func argument(e *directory.Located) []byte {
	if e.Kind == bundle.KindChunk {
		return nil
	}
	return slices.Clone(e.Header)
}

// putShards is stepShards.
func (r *restore) putShards(ctx context.Context) error {
	highest := map[stream.Shard]uint64{}
	note := func(n stream.Shard, e uint64) { highest[n] = max(highest[n], e) }
	for n, s := range r.source.shards {
		note(stream.Shard(n), s.GetEpoch())
	}
	for _, k := range r.source.streams {
		if e := max(k.opened, uint64(k.folded.Epoch)); e > 0 {
			note(stream.Shard(k.shard), e)
		}
	}
	for n, of := range r.scan.epochs {
		for _, p := range of {
			note(n, uint64(p.epoch))
		}
	}
	// Fences that are below what is scanned.
	for _, c := range r.source.chains {
		for _, p := range c.GetProgress() {
			note(stream.Shard(p.GetShard()), p.GetEpoch())
		}
	}
	err := r.index.EachChain(ctx, func(c *indexpb.Chain) error {
		for _, p := range c.GetProgress() {
			note(stream.Shard(p.GetShard()), p.GetEpoch())
		}
		return nil
	})
	if err != nil {
		return err
	}
	for n, e := range highest {
		row := &indexpb.Shard{
			Shard: uint32(n), Profile: profileOf(r.source.shards[uint32(n)]), Epoch: e + 1, State: indexpb.ShardState_SHARD_STATE_RELEASED,
			// Of a life that never was.
			HolderLife: r.source.manifest.GetExportId(), Attempt: r.source.manifest.GetExportId(),
			Bindings: segments(r.scan.epochs[n], r.scan.cuts),
		}
		if err := r.rows.Put(ctx, row); err != nil {
			return err
		}
	}
	return nil
}

// segments returns the bindings of a shard: the parts of chains that hold entries of
// it, in the order of their epochs. A part ends at the fence of the next epoch that
// the chain tells of, else at the chain's cut.
func segments(of []placed, cuts map[string]uint64) (out []*indexpb.Binding) {
	of = slices.SortedFunc(slices.Values(of), func(a, b placed) int {
		if a.epoch != b.epoch {
			return int(int64(a.epoch) - int64(b.epoch))
		}
		return int(int64(a.slot) - int64(b.slot))
	})
	end := func(b *indexpb.Binding, last stream.Epoch) {
		b.Cut, b.CutKnown = cuts[b.GetChainId()], true
		for _, p := range of {
			if p.chain != b.GetChainId() || p.epoch <= last {
				continue
			}
			if b.Cut = p.slot; !p.entries {
				b.Cut++ // entries of before may be in the fence's slot
			}
			return
		}
	}
	var last stream.Epoch
	for _, p := range of {
		if !p.entries {
			continue
		}
		if k := len(out) - 1; k >= 0 && out[k].GetChainId() == p.chain {
			last = p.epoch
			continue
		} else if k >= 0 {
			end(out[k], last)
		}
		out, last = append(out, &indexpb.Binding{ChainId: p.chain, Epoch: uint64(p.epoch)}), p.epoch
	}
	if k := len(out) - 1; k >= 0 {
		end(out[k], last)
	}
	return out
}
