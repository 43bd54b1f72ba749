package chain

import (
	"context"
	"errors"
	"fmt"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
)

// isDamage reports whether an error says that a slot's bytes are not what was
// written; bytes of another version or of another slot are intact.
func isDamage(err error) bool {
	return errors.Is(err, bundle.ErrCorrupt) || errors.Is(err, objectstore.ErrRange)
}

// rebuild reads a damaged slot from all of its bytes. It answers only if they
// prove what was written; else the error is damage, and work on the chain stops:
// what such a slot holds is of any stream of any shard that the chain is bound
// to, and their numbers must not be given again (I1). See docs/adr/0005.
func (s *Store) rebuild(ctx context.Context, c stream.ChainID, slot stream.Slot, damage error) (bundle.Footer, content, error) {
	// A slot may be large: one at a time (I8).
	select {
	case s.rebuilding <- struct{}{}:
		defer func() { <-s.rebuilding }()
	case <-ctx.Done():
		return bundle.Footer{}, holdsNothing, ctx.Err()
	}
	o, err := s.reg.Read(ctx, c, slot, objectstore.Range{Length: bundle.MaxBytes})
	switch {
	case errors.Is(err, objectstore.ErrNotFound):
		return bundle.Footer{}, holdsNothing, nil
	case isDamage(err):
		return bundle.Footer{}, holdsNothing, damage
	case err != nil:
		return bundle.Footer{}, holdsNothing, fmt.Errorf("read slot %d: %w", slot, err)
	}
	f, err := bundle.Rebuild(o.Body, bundle.Ident{Chain: c, Slot: slot, Profile: s.cfg.Profile})
	if err != nil {
		return bundle.Footer{}, holdsNothing, fmt.Errorf("%w; read whole: %w", damage, err)
	}
	if f.Chain != c || f.Slot != slot {
		return bundle.Footer{}, holdsNothing, fmt.Errorf("slot %d holds slot %d of chain %s: %w", slot, f.Slot, f.Chain, ErrForeign)
	}
	s.cfg.Log.ErrorContext(ctx, "a slot is damaged; what it holds is known from the rest of it", "object", SlotKey(c, slot), "entries", len(f.Entries), "err", damage)
	if f.IsSeal {
		return f, holdsSeal, nil
	}
	return f, holdsBundle, nil
}

// Footers returns what the slots [from, to) of a chain say that they hold, for the
// repair of what was made of them. A damaged slot is read whole, and answers only if
// that proves what it held; a slot that is gone is ErrBroken.
func (s *Store) Footers(ctx context.Context, c stream.ChainID, from, to stream.Slot) ([]bundle.Footer, error) {
	w := window{Store: s, chain: c}
	found, err := w.readFooters(ctx, from, to)
	if err != nil {
		return nil, fmt.Errorf("read the slots of chain %s: %w", c, err)
	}
	out := make([]bundle.Footer, 0, len(found))
	for i, f := range found {
		slot := from + stream.Slot(i)
		switch {
		case f.damage != nil:
			return nil, fmt.Errorf("slot %d of chain %s: %w", slot, c, f.damage)
		case f.held != holdsBundle:
			return nil, fmt.Errorf("slot %d of chain %s holds no bundle: %w", slot, c, ErrBroken)
		}
		out = append(out, f.Footer)
	}
	return out, nil
}
