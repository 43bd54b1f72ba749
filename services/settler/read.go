package settler

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/directory"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
)

const (
	// readAlong is how many bytes between two entries are read along.
	readAlong = 64 << 10
	// maxRange is how large one range of a slot is at most, unless one entry is
	// larger.
	maxRange = 4 << 20
)

// wanted is a chunk that is read from its slot.
type wanted struct {
	directory.Located

	bytes []byte // of the chunk, once it is read and verified
	err   error  // what is wrong with it: the stream's own damage
}

// stretch is a range of a slot that holds wanted chunks.
type stretch struct {
	chain    stream.ChainID
	slot     stream.Slot
	from, to uint32
	chunks   []*wanted
}

// read reads chunks from their slots, in large ranges, and verifies each before it
// is used (I10). What is damaged says so; an error is about the storage.
func (s *span) read(ctx context.Context, chunks []*wanted) error {
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for _, r := range stretches(chunks, uint32(min(maxRange, s.memory/(4*readsAtOnce)))) {
		group.Go(func() error { return s.readStretch(gctx, r) })
	}
	return group.Wait()
}

// stretches returns the ranges to read, in order of slots, each byte once.
func stretches(chunks []*wanted, limit uint32) []*stretch {
	chunks = slices.Clone(chunks)
	slices.SortFunc(chunks, func(a, b *wanted) int {
		return cmp.Or(bytes.Compare(a.At.Chain[:], b.At.Chain[:]), cmp.Compare(a.At.Slot, b.At.Slot), cmp.Compare(a.At.Offset, b.At.Offset))
	})
	var out []*stretch
	for _, c := range chunks {
		from, to := c.At.Offset, c.At.Offset+c.At.Length
		if k := len(out); k > 0 {
			r := out[k-1]
			if r.chain == c.At.Chain && r.slot == c.At.Slot && from >= r.to && from-r.to < readAlong && to-r.from <= limit {
				r.to, r.chunks = to, append(r.chunks, c)
				continue
			}
		}
		out = append(out, &stretch{chain: c.At.Chain, slot: c.At.Slot, from: from, to: to, chunks: []*wanted{c}})
	}
	return out
}

func (s *span) readStretch(ctx context.Context, r *stretch) error {
	b, err := s.readSlot(ctx, r.chain, r.slot, r.from, r.to)
	if err != nil {
		return err
	}
	used := 0
	for _, c := range r.chunks {
		used += int(c.At.Length)
	}
	sparse := used < len(b)/2 // then what was read along is not kept
	for _, c := range r.chunks {
		from, to := c.At.Offset-r.from, c.At.Offset+c.At.Length-r.from
		if int64(to) > int64(len(b)) {
			c.err = fmt.Errorf("slot %d is cut short: %w", r.slot, bundle.ErrCorrupt)
		} else {
			c.bytes, c.err = c.verify(b[from:to])
		}
		if c.err == nil {
			if sparse {
				c.bytes = bytes.Clone(c.bytes)
			}
			continue
		}
		// It may have been damaged on its way.
		if b, err := s.readSlot(ctx, r.chain, r.slot, c.At.Offset, c.At.Offset+c.At.Length); err != nil {
			return err
		} else if len(b) == int(c.At.Length) {
			c.bytes, c.err = c.verify(b)
		}
		if c.err != nil && !damaged(c.err) {
			return fmt.Errorf("slot %d: %w", r.slot, c.err) // of a newer program
		}
	}
	return nil
}

// readSlot returns less than the range if the slot's object is cut short.
func (s *span) readSlot(ctx context.Context, of stream.ChainID, slot stream.Slot, from, to uint32) ([]byte, error) {
	if err := s.take(ctx, int64(to-from)); err != nil {
		return nil, err
	}
	o, err := again(ctx, func(ctx context.Context) (objectstore.Object, error) {
		return s.slots.Read(ctx, of, slot, objectstore.Range{Offset: int64(from), Length: int64(to - from)})
	})
	switch {
	case errors.Is(err, objectstore.ErrNotFound):
		return nil, fmt.Errorf("slot %d of chain %s is gone: %w", slot, of, errMoved)
	case errors.Is(err, chain.ErrForeign):
		return nil, nil // it ends before the range
	case err != nil:
		return nil, fmt.Errorf("read slot %d: %w", slot, err)
	}
	return o.Body, nil
}

// verify returns the chunk in an entry's bytes, if it is the one that the
// directory names.
func (c *wanted) verify(b []byte) ([]byte, error) {
	e, err := bundle.ParseEntry(b)
	if err != nil {
		return nil, fmt.Errorf("entry in slot %d at %d: %w", c.At.Slot, c.At.Offset, err)
	}
	if e.Kind != c.Kind || e.Shard != c.Shard || e.Epoch != c.Epoch || e.EntryNo != c.EntryNo || e.StreamID != c.StreamID || !bytes.HasPrefix(e.Body, c.Header) {
		return nil, fmt.Errorf("slot %d holds at %d another entry than its directory says: %w", c.At.Slot, c.At.Offset, bundle.ErrCorrupt)
	}
	if _, err := chunk.Check(e.Body); err != nil {
		return nil, fmt.Errorf("entry in slot %d at %d: %w", c.At.Slot, c.At.Offset, err)
	}
	return e.Body, nil
}

// gather runs f for each of a number of things, some in parallel, and waits for
// all of them; each handles its own error.
func gather[T any](limit int, of []T, f func(T)) {
	var work sync.WaitGroup
	free := make(chan struct{}, limit)
	for _, v := range of {
		free <- struct{}{}
		work.Go(func() {
			defer func() { <-free }()
			f(v)
		})
	}
	work.Wait()
}
