package settler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

const (
	// queueSettled holds the markers of settled objects and pages: object. Their
	// judge is due when no settler can be at work on them any more.
	queueSettled = "settled"
	// judgeAfter is when such an object is looked at.
	judgeAfter = time.Hour
	// aloneBytes is how large a run is that gets objects of its own.
	aloneBytes = 8 << 20
)

// group is streams that are settled together: their chunks share reads and
// objects.
type group struct {
	*span

	plans  []*plan
	weight int64
}

// groupBytes is what a group may weigh: the chunks that were read. Directories
// take an eighth of the memory, ranges that are being read a quarter, and so does
// the object that is being made.
func (s *span) groupBytes() int64 { return s.memory / 4 }

// objectBytes is how large an object becomes.
func (s *span) objectBytes() int { return int(min(settled.MaxBytes, s.memory/4)) }

// frameBytes is how many bytes of frames surely fit into an object.
func (s *span) frameBytes() int64 { return int64(s.objectBytes()) / 16 * 15 }

func (g *group) add(p *plan) {
	g.plans = append(g.plans, p)
	g.weight += p.weight
}

// kin is equal for streams that may share objects.
func (p *plan) kin() string { return p.limits.kin(p.head.GetBucketId()) }

// settle is steps 4 to 6. It returns the streams to take up again.
func (g *group) settle(ctx context.Context) (again []*work, err error) {
	slices.SortStableFunc(g.plans, func(a, b *plan) int { return cmp.Compare(a.kin(), b.kin()) })
	plans, again, err := g.readOld(ctx)
	if err != nil {
		return nil, err
	}
	w := &writer{span: g.span, plans: map[stream.ID]*plan{}}
	broken, err := w.write(ctx, plans)
	if err != nil {
		return nil, err
	}
	var sound []*plan
	for _, p := range plans {
		if p.redo {
			again = append(again, p.work)
			continue
		}
		if log := broken[p]; log != nil {
			if again, err = g.take(ctx, again, p, log); err != nil {
				return nil, err
			}
			continue
		}
		sound = append(sound, p)
	}
	more, err := g.adopt(ctx, sound, w.objects)
	return append(again, more...), err
}

// take notes a stream whose log was found broken: the first time it is taken up
// again, the second time it is quarantined.
func (g *group) take(ctx context.Context, again []*work, p *plan, log *errLog) ([]*work, error) {
	err := g.broken(ctx, p, log)
	var first *errLog
	switch {
	case errors.As(err, &first):
		p.failed = first
		return append(again, p.work), nil
	case catalog.IsConflict(err):
		return append(again, p.work), nil
	case err != nil:
		return nil, fmt.Errorf("stream %s: %w", p.id, err)
	}
	return again, nil
}

// writer makes the objects of a group, one after the other.
type writer struct {
	*span

	object  *settled.Builder // that is being made; nil: none
	begun   *plan            // whose run is the last in it
	runs    int              // in it
	ahead   int64            // bytes of chunks that may still go into it, at most
	plans   map[stream.ID]*plan
	objects []*object
	failure error // of the storage
}

// write makes the objects of all chunks and returns the plans whose chunks are
// not what they should be. What such a plan left in an object, or one that is to be
// taken up again, no head will name.
func (w *writer) write(ctx context.Context, plans []*plan) (map[*plan]*errLog, error) {
	broken := map[*plan]*errLog{}
	if len(plans) == 1 {
		// It may be larger than the memory, and is taken in pieces then.
		w.ahead = plans[0].bytes
		err := w.run(ctx, plans[0], broken)
		return broken, errors.Join(err, w.end(ctx, err))
	}
	wants := map[*plan][]*wanted{}
	var all []*wanted
	for _, p := range plans {
		wants[p] = p.wanted()
		all = append(all, wants[p]...)
	}
	if err := w.read(ctx, all); err != nil {
		return nil, err
	}
	for i, p := range plans {
		if i > 0 && (apart(plans[i-1], p) || w.splits(p)) {
			if err := w.seal(ctx); err != nil {
				return nil, err
			}
		}
		if w.object == nil {
			w.ahead = together(plans[i:])
		}
		m := w.merger(ctx, p)
		if err := w.merge(ctx, p, m, wants[p], broken); err != nil {
			return nil, err
		}
		delete(wants, p)
	}
	return broken, w.end(ctx, nil)
}

// apart reports whether a stream shares no object with the one before it.
func apart(before, p *plan) bool {
	return p.bytes >= aloneBytes || before.bytes >= aloneBytes || p.kin() != before.kin()
}

// together returns the bytes of the chunks of the first plan and those after it that
// share objects with it.
func together(plans []*plan) int64 {
	bytes := plans[0].bytes
	for i := 1; i < len(plans) && !apart(plans[i-1], plans[i]); i++ {
		bytes += plans[i].bytes
	}
	return bytes
}

// splits reports whether what is rewritten would go into two objects, although it
// fits into one.
func (w *writer) splits(p *plan) bool {
	return p.rewrite != nil && w.object != nil && int64(w.object.Size())+p.bytes > w.frameBytes()
}

// end seals what is left, unless there was an error.
func (w *writer) end(ctx context.Context, err error) error {
	if err != nil {
		return nil
	}
	return w.seal(ctx)
}

// run writes the chunks of one stream, read in pieces.
func (w *writer) run(ctx context.Context, p *plan, broken map[*plan]*errLog) error {
	m := w.merger(ctx, p)
	for rest := p.wanted(); len(rest) > 0 && broken[p] == nil && !p.redo; {
		n, size := 0, int64(0)
		for n < len(rest) && (n == 0 || size+int64(rest[n].At.Length) <= w.groupBytes()) {
			size += int64(rest[n].At.Length)
			n++
		}
		piece := rest[:n]
		rest = rest[n:]
		if err := w.read(ctx, piece); err != nil {
			return err
		}
		if err := w.merge(ctx, p, m, piece, broken); err != nil {
			return err
		}
		for _, c := range piece {
			c.bytes = nil
		}
	}
	return nil
}

func (p *plan) wanted() []*wanted {
	out := make([]*wanted, len(p.store))
	for i, e := range p.store {
		out[i] = &wanted{Located: e}
	}
	return out
}

func (w *writer) merger(ctx context.Context, p *plan) *settled.Merger {
	return settled.NewMerger(p.id, func(frame []byte, h *chunk.Header) error {
		w.failure = w.frame(ctx, p, frame, h)
		return w.failure
	})
}

// merge makes frames of chunks that were read, and before the first of them of
// what is rewritten.
func (w *writer) merge(ctx context.Context, p *plan, m *settled.Merger, chunks []*wanted, broken map[*plan]*errLog) error {
	err := p.rewrite.feed(m)
	for _, c := range chunks {
		if err != nil {
			break
		}
		if err = c.err; err == nil {
			err = m.Add(c.bytes)
		}
		if err != nil {
			err = fmt.Errorf("chunk at %d in slot %d: %w", c.Chunk.BaseSeq, c.At.Slot, err)
			break
		}
	}
	if err == nil {
		err = m.Flush()
	}
	switch {
	case err == nil:
	case w.failure != nil:
		return w.failure
	case p.rewrite != nil:
		w.unwritten(ctx, p, err) // and if it is the log, that is found then
		p.redo = true
	case damaged(err) || errors.Is(err, settled.ErrCorrupt):
		broken[p] = &errLog{cause: err}
	default:
		return fmt.Errorf("stream %s: %w", p.id, err)
	}
	return nil
}

// frame adds a frame of a stream to the object that is being made, or the next.
func (w *writer) frame(ctx context.Context, p *plan, frame []byte, h *chunk.Header) error {
	if w.object != nil && w.runs > 0 && w.object.Size()+len(frame) > w.objectBytes() {
		if err := w.seal(ctx); err != nil {
			return err
		}
	}
	for {
		fresh := w.object == nil
		if fresh {
			w.object = settled.NewBuilder()
			w.object.Grow(int(min(w.ahead, int64(w.objectBytes()))))
		}
		if w.begun != p {
			w.object.Begin(p.id)
			w.begun = p
			w.plans[p.id] = p
			w.runs++
		}
		err := w.object.Add(frame, h)
		if !errors.Is(err, settled.ErrFull) || fresh {
			w.ahead = max(w.ahead-int64(len(frame)), 0)
			return err
		}
		if err := w.seal(ctx); err != nil {
			return err
		}
	}
}

// seal makes the object of what was gathered.
func (w *writer) seal(ctx context.Context) error {
	if w.object == nil {
		return nil
	}
	body, runs := w.object.Finish()
	plans := w.plans
	w.object, w.begun, w.runs, w.plans = nil, nil, 0, map[stream.ID]*plan{}
	if len(runs) == 0 {
		return nil
	}
	o, err := w.makeRuns(ctx, body, runs)
	if err != nil {
		return err
	}
	for i, r := range runs {
		p := plans[r.StreamID]
		at := &placed{object: o, run: uint32(i), of: r}
		if p.rewrite != nil {
			at.generation = p.rewrite.generation
		}
		o.placed = append(o.placed, at)
		p.placed = append(p.placed, at)
	}
	w.objects = append(w.objects, o)
	return nil
}

// placed is a run of a stream in an object.
type placed struct {
	object *object
	run    uint32
	of     settled.Run

	generation uint32

	// tried says that a head may name it, named that one does.
	tried, named bool
}

func (p *placed) ref() *indexpb.Ref {
	r := &p.of
	return &indexpb.Ref{
		Object: p.object.key, Run: p.run, FirstSeq: uint64(r.First), NextSeq: uint64(r.Next),
		FirstTimestamp: int64(r.FirstTimestamp), LastTimestamp: int64(r.LastTimestamp),
		HashBefore: uint64(r.HashBefore), HashAfter: uint64(r.HashAfter), Offset: r.Offset, Length: r.Length,
		Frames: r.Frames, IndexOffset: r.IndexOffset, IndexLength: r.IndexLength, Generation: p.generation,
	}
}

// object is an object that was made, of runs or a page, until its row says that it
// is adopted.
type object struct {
	*engine

	key    string
	marker catalog.Marker
	placed []*placed

	mu      sync.Mutex
	row     *indexpb.SettledObject
	version int64
}

// makeRuns makes an object of runs, whose key is new.
func (e *engine) makeRuns(ctx context.Context, body []byte, runs []settled.Run) (*object, error) {
	bytes := uint64(0)
	for i := range runs {
		bytes += runs[i].Bytes()
	}
	return e.make(ctx, body, &indexpb.SettledObject{Object: runsPrefix + stream.NewAttemptID().String(), Runs: uint32(len(runs)), LiveBytes: bytes})
}

// make is step 4: whatever is left of it, the marker leads to it. The row says what the
// object is.
func (e *engine) make(ctx context.Context, body []byte, row *indexpb.SettledObject) (*object, error) {
	now, key, runs, streamID := e.now(), row.GetObject(), int(row.GetRuns()), row.GetStreamId()
	row.State, row.Live = indexpb.SettledState_SETTLED_STATE_ADOPTING, settled.NewLive(runs, func(int) bool { return true })
	row.Size, row.CreatedAt = uint64(len(body)), now.UnixMilli()
	o := &object{engine: e, key: key, row: row}
	var err error
	if o.marker, err = e.index.ArmDue(ctx, &indexpb.Due{Queue: queueSettled, At: now.Add(judgeAfter).UnixMilli(), Object: key, StreamId: streamID}); err != nil {
		return nil, fmt.Errorf("arm the marker of a settled object: %w", err)
	}
	if o.version, err = e.index.PutSettled(ctx, o.row, catalog.Absent); err != nil {
		return nil, fmt.Errorf("put the row of a settled object: %w", err)
	}
	_, err = again(ctx, func(ctx context.Context) (objectstore.ETag, error) { return e.objects.PutIfAbsent(ctx, key, body) })
	// The key is this attempt's own: what is there is this body.
	if err != nil && !errors.Is(err, objectstore.ErrExists) {
		return nil, fmt.Errorf("put a settled object: %w", err)
	}
	e.metrics.written.Add(ctx, int64(len(body)))
	e.metrics.writtenBytes.Add(uint64(len(body)))
	e.metrics.objects.Add(ctx, 1)
	return o, nil
}
