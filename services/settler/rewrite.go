package settler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// A stream that has little in each span would have a small run per span. So when
// its newest refs are many and small, their runs and what the span adds become one
// run: the same change of the head that adds it drops them, and what is dropped has
// a marker before, as what is trimmed has. There is no other write and no queue.
//
// A run's generation is one more than the highest of the runs that it was made of,
// of which at least Config.RewriteRuns had that one. So a byte is rewritten at most
// once per generation, and a run of generation g was made of RewriteRuns^g runs or
// more. Since only runs below rewriteBytes are rewritten, the bytes of spans that
// add b bytes each are rewritten at most 1 + log(rewriteBytes/b) times, to the base
// RewriteRuns.
//
// Rewriting saves; it is never needed. Whatever is in its way, the stream is
// settled without it, and the next span tries again.

const (
	// rewriteBytes is from which size on a run stays as it is.
	rewriteBytes = aloneBytes
	// rewriteTime is how much time the records of a run that is made of others
	// cover at most: records expire by age only when those after them in the run do.
	rewriteTime = 7 * 24 * time.Hour
	// rewriteTries is how often a stream is taken up again because an object that
	// its head names is gone: by then the head is no old read.
	rewriteTries = 2
)

// rewrite is the newest runs of a stream that become one with what a span adds.
type rewrite struct {
	refs       []*indexpb.Ref // the last of the head's, as it was read
	bytes      int64          // of their frames
	generation uint32         // of what they become
	frames     [][]byte       // once they are read and verified; those above the trim
}

// rewritten chooses the refs to rewrite, after the fold: the longest suffix of the
// head's refs that are small, fit into the memory, and of which enough have the
// highest generation among them. nil if none do.
func (s *span) rewritten(p *plan) *rewrite {
	refs := p.head.GetRefs()
	if p.plain || s.rewrites < 2 || len(refs) < s.rewrites || len(p.store) == 0 {
		return nil
	}
	// If the log does not continue the refs, that is for history.Append to say.
	first, end := p.store[0].Chunk, refs[len(refs)-1]
	if uint64(first.BaseSeq) != end.GetNextSeq() || uint64(first.HashBefore) != end.GetHashAfter() || int64(first.FirstTimestamp) < end.GetLastTimestamp() {
		return nil
	}
	room, covers := min(s.groupBytes()-p.weight, s.frameBytes()-p.bytes), rewriteTime
	if p.limits.age > 0 {
		covers = min(covers, p.limits.age/limitShare)
	}
	if p.limits.bytes > 0 {
		room = min(room, int64(min(p.limits.bytes/limitShare, rewriteBytes)))
	}
	oldest := int64(p.store[len(p.store)-1].Chunk.LastTimestamp) - covers.Milliseconds()
	var found *rewrite
	size, highest, of := int64(0), uint32(0), map[uint32]int{}
	for i := len(refs) - 1; i >= 0; i-- {
		r := refs[i]
		if r.GetLength() >= rewriteBytes || size+int64(r.GetLength()) > room || r.GetNextSeq() <= uint64(p.state.Trim) || r.GetFirstTimestamp() < oldest {
			break
		}
		size += int64(r.GetLength())
		highest = max(highest, r.GetGeneration())
		if of[r.GetGeneration()]++; of[highest] >= s.rewrites {
			found = &rewrite{refs: refs[i:], bytes: size, generation: highest + 1}
		}
	}
	return found
}

// allowance is what a span may still rewrite.
type allowance struct{ bytes, runs int64 }

// allow sets it: several times what the span adds, which is more than is needed
// in the long run. So streams that began together and grow alike do not hold up
// the span in which all of them have enough runs; some wait for the next.
func (s *span) allow(streams int) {
	const times, bytes, runs = 4, 64 << 20, 1000
	s.allowance = allowance{bytes + times*int64(s.bytes), runs + times*int64(streams)}
}

// rewrite plans to rewrite what is to be, if the span may.
func (s *span) rewrite(p *plan) {
	r := s.rewritten(p)
	if r == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	left := allowance{s.allowance.bytes - r.bytes, s.allowance.runs - int64(len(r.refs))}
	if left.bytes < 0 || left.runs < 0 {
		return
	}
	s.allowance, p.rewrite = left, r
	p.bytes += r.bytes
	p.weight += r.bytes
}

// errSilent means that the store did not answer before: not every stream of the
// span waits for it.
var errSilent = errors.New("objects could not be read before")

func (s *span) rewritesNoMore() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent
}

// noteSilence ends the rewriting of the span if the store did not answer.
func (s *span) noteSilence(err error) {
	if !errors.Is(err, objectstore.ErrUnavailable) && !errors.Is(err, objectstore.ErrThrottled) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent, s.allowance = true, allowance{}
}

// errOldGone means that an object that a head names is gone: the head is an old
// read, or the object is lost.
var errOldGone = errors.New("the object of a ref is gone")

// readOld reads the frames of the runs that are rewritten. It returns the plans to
// go on with, and the streams to take up again since their heads are old reads.
func (g *group) readOld(ctx context.Context) (plans []*plan, again []*work, err error) {
	gather(readsAtOnce, g.plans, func(p *plan) {
		if p.rewrite == nil {
			return
		}
		for _, r := range p.rewrite.refs {
			if g.rewritesNoMore() {
				p.unread = errSilent
				return
			}
			var frames [][]byte
			if frames, p.unread = g.oldFrames(ctx, p.id, r, p.state.Trim); p.unread != nil {
				g.noteSilence(p.unread)
				return
			}
			p.rewrite.frames = append(p.rewrite.frames, frames...)
		}
	})
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	for _, p := range g.plans {
		if p.unread != nil {
			p.gone++
			if errors.Is(p.unread, errOldGone) && p.gone < rewriteTries {
				again = append(again, p.work)
				continue
			}
			g.unwritten(ctx, p, p.unread)
			p.bytes -= p.rewrite.bytes
			p.weight -= p.rewrite.bytes
			p.rewrite = nil
		}
		plans = append(plans, p)
	}
	return plans, again, nil
}

// unwritten says that a stream is settled without rewriting, and why.
func (s *span) unwritten(ctx context.Context, p *plan, why error) {
	p.plain = true
	s.metrics.rewriteFailures.Add(ctx, 1)
	s.log.ErrorContext(ctx, "small runs of a stream are not rewritten", "stream", p.id.String(), "chain", s.name, "err", why)
}

// oldFrames returns the frames of a run that hold records from a number on. What is
// damaged is read once more: it may have been damaged on its way.
func (s *span) oldFrames(ctx context.Context, id stream.ID, r *indexpb.Ref, from stream.Seq) ([][]byte, error) {
	b, err := s.readRun(ctx, r)
	if err != nil {
		return nil, err
	}
	frames, err := framesOf(b, id, r, from)
	if err != nil {
		if b, err = s.readRun(ctx, r); err != nil {
			return nil, err
		}
		frames, err = framesOf(b, id, r, from)
	}
	if err != nil {
		return nil, fmt.Errorf("run %d of object %s: %w", r.GetRun(), r.GetObject(), err)
	}
	return frames, nil
}

// readRun reads all frames of a run: they lie side by side.
func (s *span) readRun(ctx context.Context, r *indexpb.Ref) ([]byte, error) {
	if err := s.take(ctx, int64(r.GetLength())); err != nil {
		return nil, err
	}
	o, err := again(ctx, func(ctx context.Context) (objectstore.Object, error) {
		return s.objects.GetRange(ctx, r.GetObject(), objectstore.Range{Offset: int64(r.GetOffset()), Length: int64(r.GetLength())})
	})
	if errors.Is(err, objectstore.ErrNotFound) {
		return nil, fmt.Errorf("object %s: %w", r.GetObject(), errOldGone)
	}
	if err != nil {
		return nil, fmt.Errorf("read run %d of object %s: %w", r.GetRun(), r.GetObject(), err)
	}
	return o.Body, nil
}

// framesOf verifies all frames of a run, by their checksums and by the ref (I10),
// and returns those that hold records from a number on.
func framesOf(b []byte, id stream.ID, r *indexpb.Ref, from stream.Seq) ([][]byte, error) {
	if uint64(len(b)) != r.GetLength() {
		return nil, fmt.Errorf("%w: %d bytes, want %d", settled.ErrCorrupt, len(b), r.GetLength())
	}
	var out [][]byte
	next, hash, at := stream.Seq(r.GetFirstSeq()), stream.Hash(r.GetHashBefore()), stream.Millis(r.GetFirstTimestamp())
	for n := uint32(0); len(b) > 0; n++ {
		h, size, err := chunk.ParseHeader(b)
		if err != nil {
			return nil, fmt.Errorf("frame %d: %w", n, err)
		}
		size = min(size+int(h.PayloadLength), len(b))
		frame := b[:size:size]
		b = b[size:]
		if h, err = chunk.Check(frame); err != nil {
			return nil, fmt.Errorf("frame %d: %w", n, err)
		}
		if h.StreamID != id || h.BaseSeq != next || h.HashBefore != hash || h.FirstTimestamp < at || n == 0 && h.FirstTimestamp != at || n >= r.GetFrames() {
			return nil, fmt.Errorf("%w: frame %d is %+v, the ref says %v", settled.ErrCorrupt, n, h, r)
		}
		next, hash, at = h.Next(), h.HashAfter, h.LastTimestamp
		if next > from {
			out = append(out, frame)
		}
	}
	if uint64(next) != r.GetNextSeq() || uint64(hash) != r.GetHashAfter() || int64(at) != r.GetLastTimestamp() {
		return nil, fmt.Errorf("%w: the frames end at %d, %016x, at %d; the ref says %v", settled.ErrCorrupt, next, hash, at, r)
	}
	return out, nil
}

// feed hands over what was read; the second time there is nothing.
func (r *rewrite) feed(m *settled.Merger) error {
	if r == nil {
		return nil
	}
	frames := r.frames
	r.frames = nil
	for _, f := range frames {
		if err := m.Add(f); err != nil {
			return fmt.Errorf("a run that is rewritten: %w", err)
		}
	}
	return nil
}

// errRewrite means that a rewrite does not fit the head, which is not the log's
// fault.
var errRewrite = errors.New("what was rewritten does not fit")

// replace drops the refs that are rewritten from the head that is to be, and
// returns them. What is trimmed was dropped before.
func (r *rewrite) replace(next *indexpb.Head) ([]*indexpb.Ref, error) {
	if r == nil {
		return nil, nil
	}
	keep := len(next.GetRefs()) - len(r.refs)
	for i, old := range r.refs {
		if keep < 0 || !proto.Equal(next.GetRefs()[keep+i], old) {
			return nil, fmt.Errorf("%w: %v is not among the last refs", errRewrite, old)
		}
	}
	next.Refs = next.GetRefs()[:keep]
	return r.refs, nil
}
