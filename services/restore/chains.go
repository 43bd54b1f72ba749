package restore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

const (
	// chainsAtOnce is how many chains are worked on in parallel, and readsAtOnce how
	// many reads one of them has under way.
	chainsAtOnce = 8
	readsAtOnce  = 16
)

// restoreChains is stepChains. All chains are sealed before the first is absorbed:
// then every slot is known in which an epoch of a shard begins.
func (r *restore) restoreChains(ctx context.Context) error {
	ids := map[string]bool{}
	for id := range r.source.chains {
		ids[id] = true
	}
	for id := range r.bucket.slots {
		ids[id] = true
	}
	all := slices.Sorted(maps.Keys(ids))
	r.report.Chains = len(all)
	tails := make([]*tail, len(all))
	err := atOnce(ctx, chainsAtOnce, len(all), func(ctx context.Context, i int) (err error) {
		if tails[i], err = r.sealChain(ctx, all[i]); err != nil {
			return fmt.Errorf("chain %s: %w", all[i], err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	first := r.firstEpochs(tails)
	return atOnce(ctx, chainsAtOnce, len(all), func(ctx context.Context, i int) error {
		if err := r.absorbChain(ctx, tails[i], first); err != nil {
			return fmt.Errorf("chain %s: %w", all[i], err)
		}
		return nil
	})
}

// atOnce calls f for 0..n-1, some in parallel.
func atOnce(ctx context.Context, limit, n int, f func(context.Context, int) error) error {
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(limit)
	for i := range n {
		group.Go(func() error {
			if err := gctx.Err(); err != nil {
				return err
			}
			return f(gctx, i)
		})
	}
	return group.Wait()
}

// tail is the part of a chain that is not absorbed.
type tail struct {
	id     stream.ChainID
	record *indexpb.Chain
	// begins are the first entries of epochs of shards, by slot.
	begins []begin
}

type begin struct {
	slot  uint64
	shard stream.Shard
	epoch stream.Epoch
}

// sealChain puts a chain's directories and record, seals it, and reads what its tail
// holds.
func (r *restore) sealChain(ctx context.Context, id string) (*tail, error) {
	c, err := stream.ParseChainID(id)
	if err != nil {
		return nil, err
	}
	there, err := r.rows.Get(ctx, &indexpb.Chain{ChainId: id})
	if err != nil {
		return nil, err
	}
	if !there {
		if err := r.putChain(ctx, id); err != nil {
			return nil, err
		}
	}
	if _, err := r.chains.Seal(ctx, c, stream.NewLifeID()); err != nil {
		return nil, err
	}
	t := &tail{id: c}
	if t.record, _, err = r.index.GetChain(ctx, id); err != nil {
		return nil, err
	}
	return t, r.readTail(ctx, t)
}

// putChain puts the rows of a chain as the export has them, or those of one that was
// opened after it.
func (r *restore) putChain(ctx context.Context, id string) error {
	record := proto.CloneOf(r.source.chains[id])
	if record == nil {
		u := ulid.MustParseStrict(id)
		record = &indexpb.Chain{
			ChainId: id, Profile: novapb.StorageProfile_STORAGE_PROFILE_STANDARD, State: indexpb.ChainState_CHAIN_STATE_OPEN,
			WriterLife: stream.LifeID(u).String(), CreatedAt: int64(u.Time()), Attempt: r.source.manifest.GetExportId(),
		}
		return r.rows.Put(ctx, record)
	}
	if record.GetState() == indexpb.ChainState_CHAIN_STATE_RETIRED {
		return r.rows.Put(ctx, record)
	}
	kept := r.present(id, record)
	from := firstSlot(kept, record)
	if from > record.GetSettledTo() {
		// What is needed is gone. If it is only directories, they are made again.
		if again, err := r.absorbAgain(ctx, id, record); err != nil {
			return err
		} else if again {
			kept = r.present(id, record)
			from = firstSlot(kept, record)
		}
	}
	if settled := record.GetSettledTo(); from > settled {
		r.damaged(ctx, "slots of a chain are gone that were not settled when the export was made; streams that had records there are quarantined when they are opened",
			"chain", id, "from", settled, "to", from)
	}
	for _, d := range slices.Concat(r.pinned(id, record, from), kept) {
		if err := r.rows.Put(ctx, d); err != nil {
			return err
		}
	}
	// What is there is settled again: heads that hold it pass it over.
	record.SettledTo = from
	record.ReclaimedTo = min(record.GetReclaimedTo(), from)
	record.AbsorbingTo = record.GetAbsorbedTo()
	record.Pins = slices.DeleteFunc(record.GetPins(), func(p *indexpb.ChainPin) bool {
		p.To = min(p.GetTo(), from)
		return p.GetFrom() >= p.GetTo()
	})
	return r.rows.Put(ctx, record)
}

// firstSlot is where directories that lead up to absorbed_to begin.
func firstSlot(of []*indexpb.Directory, record *indexpb.Chain) uint64 {
	if len(of) == 0 {
		return record.GetAbsorbedTo()
	}
	return of[0].GetFrom()
}

// absorbAgain takes absorbed_to back to the first directory that is missing at or
// above settled_to, if the slots from there on are in the bucket. How far each shard
// was there is told by its first entry behind: a writer puts no entry of a lower
// epoch behind one of a higher.
func (r *restore) absorbAgain(ctx context.Context, id string, record *indexpb.Chain) (bool, error) {
	c, err := stream.ParseChainID(id)
	if err != nil {
		return false, err
	}
	at := record.GetSettledTo()
	for _, d := range r.sorted(id) {
		if d.GetFrom() == at && d.GetTo() <= record.GetAbsorbedTo() && r.bucket.directories[id][d.GetObject()] {
			at = d.GetTo()
		}
	}
	if at >= record.GetAbsorbedTo() || !r.bucket.holds(id, record.GetSettledTo(), record.GetAbsorbedTo()) {
		return false, nil
	}
	was := record.GetProgress()
	record.AbsorbedTo, record.AbsorbingTo, record.Progress = at, at, nil
	met := map[stream.Shard]bool{}
	for slot := at; r.bucket.holds(id, slot, slot+1); slot++ {
		f, err := r.footer(ctx, c, stream.Slot(slot))
		if err != nil {
			return false, err
		}
		for _, e := range f.Entries {
			if met[e.Shard] {
				continue
			}
			met[e.Shard] = true
			if e.Kind != bundle.KindFence && e.EntryNo > 0 {
				record.Progress = append(record.Progress, &indexpb.ShardProgress{Shard: uint32(e.Shard), Epoch: uint64(e.Epoch), NextEntry: uint64(e.EntryNo)})
			}
		}
	}
	for _, p := range was {
		if !met[stream.Shard(p.GetShard())] {
			record.Progress = append(record.Progress, p) // all of it lies below
		}
	}
	slices.SortFunc(record.Progress, func(a, b *indexpb.ShardProgress) int { return int(int64(a.GetShard()) - int64(b.GetShard())) })
	r.log.WarnContext(ctx, "directories of a chain are gone; they are made again", "chain", id, "from", at)
	return true, nil
}

// sorted returns the directories of a chain that the export has, by slot.
func (r *restore) sorted(id string) []*indexpb.Directory {
	return slices.SortedFunc(slices.Values(r.source.directories[id]), func(a, b *indexpb.Directory) int {
		return int(int64(a.GetFrom()) - int64(b.GetFrom()))
	})
}

// present returns the last directories of a chain, up to absorbed_to, whose objects
// and slots are there.
func (r *restore) present(id string, record *indexpb.Chain) []*indexpb.Directory {
	// Above it, if absorbed_to was taken back, others are made.
	all := slices.DeleteFunc(r.sorted(id), func(d *indexpb.Directory) bool { return d.GetTo() > record.GetAbsorbedTo() })
	first, next := len(all), record.GetAbsorbedTo()
	for i := len(all) - 1; i >= 0; i-- {
		d := all[i]
		if d.GetTo() != next || !r.bucket.directories[id][d.GetObject()] || !r.bucket.holds(id, d.GetFrom(), d.GetTo()) {
			break
		}
		first, next = i, d.GetFrom()
	}
	return all[first:]
}

// pinned returns the directories below a slot that a repair of quarantined streams
// needs: those of pinned slots.
func (r *restore) pinned(id string, record *indexpb.Chain, below uint64) []*indexpb.Directory {
	return slices.DeleteFunc(r.sorted(id), func(d *indexpb.Directory) bool {
		return d.GetTo() > below || !r.bucket.directories[id][d.GetObject()] || !catalog.Pinned(record.GetPins(), d.GetFrom(), d.GetTo())
	})
}

// readTail finds where epochs begin in the slots that are not absorbed.
func (r *restore) readTail(ctx context.Context, t *tail) error {
	from, cut := t.record.GetAbsorbedTo(), t.record.GetCut()
	if from >= cut {
		return nil
	}
	at := map[stream.Shard]stream.Epoch{}
	for _, p := range t.record.GetProgress() {
		at[stream.Shard(p.GetShard())] = stream.Epoch(p.GetEpoch())
	}
	const page = 256
	for ; from < cut; from += page {
		footers := make([]bundle.Footer, min(page, cut-from))
		err := atOnce(ctx, readsAtOnce, len(footers), func(ctx context.Context, i int) (err error) {
			footers[i], err = r.footer(ctx, t.id, stream.Slot(from+uint64(i)))
			return err
		})
		if err != nil {
			return err
		}
		for i := range footers {
			for j := range footers[i].Entries {
				e := &footers[i].Entries[j]
				if e.Kind == bundle.KindFence || e.Epoch <= at[e.Shard] {
					continue
				}
				at[e.Shard] = e.Epoch
				t.begins = append(t.begins, begin{from + uint64(i), e.Shard, e.Epoch})
			}
		}
	}
	return nil
}

// footer reads the footer of a slot. Of one that is damaged nothing is said here:
// absorbing makes the best of it.
func (r *restore) footer(ctx context.Context, c stream.ChainID, slot stream.Slot) (bundle.Footer, error) {
	key := chain.SlotKey(c, slot)
	read := func(n int64) (o objectstore.Object, err error) {
		err = r.again(ctx, func() error {
			o, err = r.objects.GetRange(ctx, key, objectstore.Range{Offset: -n})
			return err
		})
		return o, err
	}
	start, err := objectstore.Object{}, error(nil)
	err = r.again(ctx, func() error {
		start, err = r.objects.GetRange(ctx, key, objectstore.Range{Length: bundle.IdentBytes})
		return err
	})
	if err != nil {
		return bundle.Footer{}, err
	}
	for n := int64(bundle.TailBytes); ; {
		o, err := read(n)
		if err != nil {
			return bundle.Footer{}, err
		}
		f, need, err := bundle.ParseTail(start.Body, o.Body, o.Size)
		if err != nil {
			return bundle.Footer{}, nil
		}
		if need == 0 || need <= n {
			return f, nil
		}
		n = need
	}
}

// firstEpochs returns the lowest epoch of each shard that has an entry in a tail, or
// in what the export's shards are bound to.
func (r *restore) firstEpochs(tails []*tail) map[stream.Shard]stream.Epoch {
	first := map[stream.Shard]stream.Epoch{}
	note := func(n stream.Shard, e stream.Epoch) {
		if old, ok := first[n]; !ok || e < old {
			first[n] = e
		}
	}
	for _, t := range tails {
		for _, p := range t.record.GetProgress() {
			note(stream.Shard(p.GetShard()), stream.Epoch(p.GetEpoch()))
		}
		for _, b := range t.begins {
			note(b.shard, b.epoch)
		}
	}
	for n, s := range r.source.shards {
		for _, b := range s.GetBindings() {
			note(stream.Shard(n), stream.Epoch(b.GetEpoch()))
		}
	}
	return first
}

// absorbChain absorbs a chain to its cut. A directory ends where an epoch of a shard
// begins that has a lower one somewhere: as it was when the shard was taken over,
// since settling goes by directories, each after the lower epochs of its shards. One
// that held entries from before and after a shard was elsewhere would wait for
// itself.
func (r *restore) absorbChain(ctx context.Context, t *tail, first map[stream.Shard]stream.Epoch) error {
	for _, b := range t.begins {
		if b.epoch > first[b.shard] && b.slot > t.record.GetAbsorbedTo() {
			if _, err := r.chains.AbsorbTo(ctx, t.id, stream.Slot(b.slot)); err != nil {
				return err
			}
		}
	}
	if cut := t.record.GetCut(); cut > t.record.GetAbsorbedTo() {
		if _, err := r.chains.AbsorbTo(ctx, t.id, stream.Slot(cut)); err != nil {
			return err
		}
	}
	return r.markChain(ctx, t)
}

// markChain arms the markers of a chain.
func (r *restore) markChain(ctx context.Context, t *tail) error {
	c, id := t.record, t.id.String()
	if c.GetState() == indexpb.ChainState_CHAIN_STATE_RETIRED {
		return nil
	}
	if err := r.due(ctx, id, &indexpb.Due{Queue: "chain", ChainId: id}); err != nil {
		return err
	}
	if c.GetReclaimedTo() < c.GetSettledTo() {
		return r.due(ctx, id, &indexpb.Due{Queue: "reclaim", ChainId: id, Number: c.GetSettledTo()})
	}
	return nil
}

// scan is what the directories hold that are not settled.
type scan struct {
	mu      sync.Mutex
	epochs  map[stream.Shard][]placed
	cuts    map[string]uint64
	unknown map[stream.ID][]entry // of streams that the export does not know
	hurt    map[stream.ID]bool    // those of them of which a part is damaged
	deletes map[stream.ID]bool    // of streams that it knows
	objects map[string]bool       // of directories that have a row
}

// placed is an epoch of a shard in a directory of a chain.
type placed struct {
	chain   string
	epoch   stream.Epoch
	slot    uint64
	entries bool // not only a fence
}

// readUnsettled is stepScan.
func (r *restore) readUnsettled(ctx context.Context) error {
	s := &scan{
		epochs: map[stream.Shard][]placed{}, cuts: map[string]uint64{}, unknown: map[stream.ID][]entry{},
		hurt: map[stream.ID]bool{}, deletes: map[stream.ID]bool{}, objects: map[string]bool{},
	}
	r.scan = s
	var chains []*indexpb.Chain
	if err := r.index.EachChain(ctx, func(c *indexpb.Chain) error {
		chains = append(chains, c)
		s.cuts[c.GetChainId()] = c.GetCut()
		return nil
	}); err != nil {
		return err
	}
	for _, c := range chains {
		rows, err := r.index.Directories(ctx, c.GetChainId(), 0, c.GetAbsorbedTo())
		if err != nil {
			return err
		}
		for _, d := range rows {
			s.objects[d.GetObject()] = true
		}
		rows = slices.DeleteFunc(rows, func(d *indexpb.Directory) bool { return d.GetFrom() < c.GetSettledTo() })
		r.report.Unsettled += len(rows)
		if err := atOnce(ctx, readsAtOnce, len(rows), func(ctx context.Context, i int) error {
			if err := r.readDirectory(ctx, rows[i]); err != nil {
				return fmt.Errorf("directory %s: %w", rows[i].GetObject(), err)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

var errNoDirectory = errors.New("it is of other slots than its row says")
