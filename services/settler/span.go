package settler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/directory"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// span is one try at settling the next part of a chain: slots [from, to).
type span struct {
	*engine

	chain    stream.ChainID
	name     string // the chain's id as text
	from, to stream.Slot
	windows  []window
	bytes    uint64 // of its entries

	mu        sync.Mutex
	pins      []*indexpb.ChainPin // of quarantined streams, in any order
	allowance allowance           // of what is rewritten
	silent    bool                // what is to be rewritten cannot be read
}

// window is one directory of the span.
type window struct {
	row *indexpb.Directory
	*directory.Reader
}

// choose is steps 1 and 2. to = from means that there is nothing to settle.
func (s *span) choose(ctx context.Context) error {
	record, _, err := s.index.GetChain(ctx, s.name)
	if err != nil {
		return fmt.Errorf("read the chain's record: %w", err)
	}
	s.from = stream.Slot(record.GetSettledTo())
	s.to = s.from
	if record.GetAbsorbedTo() <= record.GetSettledTo() {
		return nil
	}
	rows, err := s.index.Directories(ctx, s.name, record.GetSettledTo(), record.GetAbsorbedTo())
	if err != nil {
		return fmt.Errorf("list directories: %w", err)
	}
	if rows, err = s.within(rows); err != nil {
		return err
	}
	o := &order{span: s, shards: map[stream.Shard]*indexpb.Shard{}, settled: map[string]uint64{}, judged: map[segment]string{}}
	// A few at a time: a chain that waits reads no more.
	for len(rows) > 0 {
		n := min(len(rows), readsAtOnce)
		windows, err := s.open(ctx, rows[:n])
		if err != nil {
			return err
		}
		rows = rows[n:]
		ready, why, err := o.inOrder(ctx, windows)
		if err != nil {
			return err
		}
		s.windows = append(s.windows, windows[:ready]...)
		if len(s.windows) == 0 {
			return blocked("%s", why)
		}
		if ready < n {
			break
		}
	}
	s.measure()
	s.to = s.windows[len(s.windows)-1].To
	return nil
}

// within returns the rows that follow each other from the span's start, up to
// its limits; the first is always one of them.
func (s *span) within(rows []*indexpb.Directory) ([]*indexpb.Directory, error) {
	next, size, entries := uint64(s.from), uint64(0), uint64(0)
	for i, row := range rows {
		if row.GetFrom() != next {
			rows = rows[:i]
			break
		}
		size, entries, next = size+row.GetSize(), entries+row.GetEntryBytes(), row.GetTo()
		// Directories are held in memory for as long as the span is settled.
		if i > 0 && (i >= s.engine.windows || entries > s.engine.bytes || size > uint64(s.memory/8)) {
			rows = rows[:i]
			break
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("no directory begins at slot %d: %w", s.from, errMoved)
	}
	return rows, nil
}

func (s *span) open(ctx context.Context, rows []*indexpb.Directory) ([]window, error) {
	out := make([]window, len(rows))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for i, row := range rows {
		group.Go(func() (err error) {
			out[i], err = s.openOne(gctx, row)
			return err
		})
	}
	return out, group.Wait()
}

func (s *span) openOne(ctx context.Context, row *indexpb.Directory) (window, error) {
	o, err := again(ctx, func(ctx context.Context) (objectstore.Object, error) { return s.objects.Get(ctx, row.GetObject()) })
	if errors.Is(err, objectstore.ErrNotFound) {
		return window{}, fmt.Errorf("directory %s is gone: %w", row.GetObject(), errMoved)
	}
	if err != nil {
		return window{}, fmt.Errorf("read directory: %w", err)
	}
	r, err := directory.InMemory(o.Body)
	if err == nil && (r.Chain != s.chain || uint64(r.From) != row.GetFrom() || uint64(r.To) != row.GetTo()) {
		err = fmt.Errorf("%w: it is of [%d, %d) of chain %s", directory.ErrCorrupt, r.From, r.To, r.Chain)
	}
	if err != nil {
		return window{}, fmt.Errorf("directory %s: %w", row.GetObject(), err)
	}
	return window{row: row, Reader: r}, nil
}

// measure counts the entries' bytes, of directories whose rows do not tell too,
// and ends the span where there are enough.
func (s *span) measure() {
	for i, w := range s.windows {
		n := w.row.GetEntryBytes()
		if n == 0 && w.row.GetAbsorbedAt() == 0 {
			for _, id := range w.Streams() {
				entries, _ := w.Stream(id) // damage is met later
				for _, e := range entries {
					n += uint64(e.At.Length)
				}
			}
		}
		if i > 0 && s.bytes+n > s.engine.bytes {
			s.windows = s.windows[:i]
			return
		}
		s.bytes += n
	}
}

// order judges what must be settled before an epoch of a shard.
type order struct {
	*span

	shards  map[stream.Shard]*indexpb.Shard // nil: has no row
	settled map[string]uint64               // of other chains
	judged  map[segment]string
}

// inOrder returns how many of the next directories may be settled, and what the
// one behind them waits for.
//
// A head may hold entries only in the order of their positions: what was folded
// over a gap could never be filled. There is no deadlock: a directory that holds
// an epoch of a shard was claimed after all lower chains were absorbed to their
// cuts.
func (o *order) inOrder(ctx context.Context, windows []window) (int, string, error) {
	if err := o.readShards(ctx, windows); err != nil {
		return 0, "", err
	}
	for i, w := range windows {
		for _, at := range w.Epochs() {
			if at.Next == 0 {
				continue // only a fence
			}
			why, err := o.waits(ctx, at.Shard, at.Epoch, w.From)
			if err != nil {
				return 0, "", err
			}
			if why != "" {
				return i, why, nil
			}
		}
	}
	return len(windows), "", nil
}

type segment struct {
	shard stream.Shard
	epoch stream.Epoch
	from  stream.Slot // of the directory
}

// readShards reads the records of shards that have entries and were not read yet.
func (o *order) readShards(ctx context.Context, windows []window) error {
	var shards []stream.Shard
	for _, w := range windows {
		for _, at := range w.Epochs() {
			if _, known := o.shards[at.Shard]; !known && at.Next > 0 {
				o.shards[at.Shard] = nil
				shards = append(shards, at.Shard)
			}
		}
	}
	if len(shards) > o.listFrom {
		all, err := o.index.ListShards(ctx)
		if err != nil {
			return fmt.Errorf("list the shards: %w", err)
		}
		for _, n := range shards {
			o.shards[n] = all[n] // none is an old read: who sent entries has a row
		}
		return nil
	}
	var mu sync.Mutex
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(headsAtOnce)
	for _, n := range shards {
		group.Go(func() error {
			r, _, err := o.index.GetShard(gctx, n)
			if catalog.IsNotFound(err) {
				return nil // an old read: who sent entries has a row
			}
			if err != nil {
				return fmt.Errorf("read shard %d: %w", n, err)
			}
			mu.Lock()
			defer mu.Unlock()
			o.shards[n] = r
			return nil
		})
	}
	return group.Wait()
}

// waits says what entries of an epoch of a shard wait for; from is where their
// directory begins.
func (o *order) waits(ctx context.Context, n stream.Shard, e stream.Epoch, from stream.Slot) (string, error) {
	key := segment{n, e, from}
	why, known := o.judged[key]
	if known {
		return why, nil
	}
	why, err := o.judge(ctx, n, e, from)
	if err == nil {
		o.judged[key] = why
	}
	return why, err
}

func (o *order) judge(ctx context.Context, n stream.Shard, e stream.Epoch, from stream.Slot) (string, error) {
	r := o.shards[n]
	if r.GetEpoch() < uint64(e) {
		return fmt.Sprintf("shard %d is at epoch %d, its entries at %d: an old read", n, r.GetEpoch(), e), nil
	}
	bindings := r.GetBindings()
	at := -1
	for i, b := range bindings {
		if b.GetEpoch() <= uint64(e) {
			at = i
		}
	}
	// Of bindings that do not tell their epoch each chain is there once.
	for at >= 0 && bindings[at].GetEpoch() == 0 && bindings[at].GetChainId() != o.name {
		at--
	}
	if at < 0 || bindings[at].GetChainId() != o.name {
		return fmt.Sprintf("shard %d does not say that its epoch %d is in this chain: an old read", n, e), nil
	}
	if bindings[at].GetEpoch() == 0 {
		return o.judgeOld(ctx, n, e, bindings)
	}
	for _, b := range bindings[:at] {
		switch {
		case !b.GetCutKnown():
			return fmt.Sprintf("shard %d: the end of its part of chain %s is not known", n, b.GetChainId()), nil
		case b.GetChainId() == o.name:
			if b.GetCut() > uint64(from) {
				return fmt.Sprintf("shard %d: an earlier part of this chain ends at slot %d only", n, b.GetCut()), nil
			}
			continue
		}
		settled, err := o.settledTo(ctx, b.GetChainId())
		if err != nil {
			return "", err
		}
		if settled < b.GetCut() {
			return fmt.Sprintf("shard %d: its chain %s, before this one, is settled to %d of %d", n, b.GetChainId(), settled, b.GetCut()), nil
		}
	}
	return "", nil
}

// judgeOld judges an epoch from before bindings told theirs: a chain that was bound
// again is there once, at its last place, so their order tells nothing. What is not
// settled of the other chains must hold no lower epoch of the shard.
func (o *order) judgeOld(ctx context.Context, n stream.Shard, e stream.Epoch, bindings []*indexpb.Binding) (string, error) {
	for _, b := range bindings {
		if b.GetEpoch() != 0 || b.GetChainId() == o.name {
			continue
		}
		r, _, err := o.index.GetChain(ctx, b.GetChainId())
		if err != nil {
			return "", fmt.Errorf("read chain %s: %w", b.GetChainId(), err)
		}
		if b.GetCutKnown() && r.GetSettledTo() >= b.GetCut() {
			continue
		}
		id, err := stream.ParseChainID(b.GetChainId())
		if err != nil {
			return "", err
		}
		rows, err := o.index.Directories(ctx, b.GetChainId(), r.GetSettledTo(), r.GetAbsorbedTo())
		if err != nil {
			return "", err
		}
		other := &span{engine: o.engine, chain: id, name: b.GetChainId()}
		next := r.GetSettledTo()
		for _, row := range rows {
			if row.GetFrom() != next {
				break
			}
			next = row.GetTo()
			if !slices.Contains(row.GetShards(), uint32(n)) {
				continue
			}
			w, err := other.openOne(ctx, row)
			if err != nil {
				return "", err
			}
			for _, at := range w.Epochs() {
				if at.Shard == n && at.Next > 0 && at.Epoch < e {
					return fmt.Sprintf("shard %d: chain %s holds entries of its epoch %d that are not settled", n, b.GetChainId(), at.Epoch), nil
				}
			}
		}
		if b.GetCutKnown() && next < b.GetCut() {
			return fmt.Sprintf("shard %d: chain %s is not known up to the shard's cut", n, b.GetChainId()), nil
		}
	}
	return "", nil
}

// settledTo is of another chain. It only grows, so that an old read is no harm.
func (o *order) settledTo(ctx context.Context, id string) (uint64, error) {
	if n, known := o.settled[id]; known {
		return n, nil
	}
	r, _, err := o.index.GetChain(ctx, id)
	if err != nil && !catalog.IsNotFound(err) {
		return 0, fmt.Errorf("read chain %s: %w", id, err)
	}
	o.settled[id] = r.GetSettledTo()
	return r.GetSettledTo(), nil
}

// work is a stream that has entries in the span.
type work struct {
	id      stream.ID
	windows []int32 // those of the span that name it
	failed  error   // what was found in its log the last time; twice is a verdict
	gone    int     // how often an object was gone that was to be rewritten
	plain   bool    // it is settled without rewriting
}

// streams returns the streams of the span, sorted.
func (s *span) streams() []*work {
	type place struct {
		id     stream.ID
		window int32
	}
	n := 0
	for _, w := range s.windows {
		n += w.Len()
	}
	all := make([]place, 0, n)
	for i, w := range s.windows {
		for _, id := range w.Streams() {
			all = append(all, place{id, int32(i)})
		}
	}
	slices.SortStableFunc(all, func(a, b place) int { return bytes.Compare(a.id[:], b.id[:]) })
	var out []*work
	for _, p := range all {
		if k := len(out); k == 0 || out[k-1].id != p.id {
			out = append(out, &work{id: p.id})
		}
		last := out[len(out)-1]
		last.windows = append(last.windows, p.window)
	}
	return out
}

// settle is steps 3 to 8.
func (s *span) settle(ctx context.Context) error {
	todo := s.streams()
	s.allow(len(todo))
	for round := 0; len(todo) > 0; round++ {
		if round == maxRounds {
			return fmt.Errorf("%d streams change all the time: %w", len(todo), errMoved)
		}
		if round > 1 {
			if err := sleep(ctx, backoff(round)); err != nil {
				return err
			}
		}
		var err error
		if todo, err = s.round(ctx, todo); err != nil {
			return err
		}
	}
	return s.finish(ctx)
}

// round settles streams, group by group, and returns those to take up again.
func (s *span) round(ctx context.Context, todo []*work) ([]*work, error) {
	var left []*work
	g := &group{span: s}
	flush := func() error {
		again, err := g.settle(ctx)
		left = append(left, again...)
		g = &group{span: s}
		return err
	}
	for len(todo) > 0 {
		next := todo[:min(len(todo), headsAtOnce)]
		todo = todo[len(next):]
		plans, again, err := s.plan(ctx, next)
		if err != nil {
			return nil, err
		}
		left = append(left, again...)
		for _, p := range plans {
			if len(g.plans) > 0 && g.weight+p.weight > s.groupBytes() {
				if err := flush(); err != nil {
					return nil, err
				}
			}
			g.add(p)
		}
	}
	if len(g.plans) > 0 {
		if err := flush(); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// finish is steps 7 and 8.
func (s *span) finish(ctx context.Context) error {
	marker, err := s.index.ArmDue(ctx, &indexpb.Due{
		Queue: queueReclaim, At: s.now().Add(s.grace).UnixMilli(), ChainId: s.name, Number: uint64(s.to),
	})
	if err != nil {
		return fmt.Errorf("arm the marker of what may be reclaimed: %w", err)
	}
	for n := 0; ; n++ {
		done, err := s.record(ctx)
		switch {
		case done && n == 0:
			return s.index.DropDue(ctx, marker) // whoever came first has armed one
		case done:
			return nil // it may have been this one
		case catalog.IsConflict(err) && n < maxTries:
			if err := sleep(ctx, backoff(n)); err != nil {
				return err
			}
			continue
		case err != nil:
			return fmt.Errorf("record settled_to %d: %w", s.to, err)
		}
		break
	}
	s.metrics.settled.Add(ctx, int64(s.bytes))
	s.metrics.settledBytes.Add(s.bytes)
	s.metrics.spans.Add(ctx, 1)
	return nil
}

// record is step 8. It reports whether another settler did it.
func (s *span) record(ctx context.Context) (done bool, err error) {
	r, version, err := s.index.GetChain(ctx, s.name)
	if err != nil {
		return false, err
	}
	switch settled := stream.Slot(r.GetSettledTo()); {
	case settled >= s.to:
		return true, nil
	case settled != s.from:
		// An old read; or another came so far, which knows what it pinned.
		return false, errMoved
	}
	if r.Pins, err = joinPins(r.GetPins(), s.pins); err != nil {
		return false, err
	}
	if err := s.proveKept(ctx); err != nil {
		return false, err
	}
	r.SettledTo = uint64(s.to)
	_, err = s.index.PutChain(ctx, r, version)
	return false, err
}

// queueReclaim holds the markers of slots below settled_to: chain_id, and in
// number the slot below which all is settled.
const queueReclaim = "reclaim"
