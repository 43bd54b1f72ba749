package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
)

// Errors beside ErrUnavailable. Every error wraps exactly one of them, or a
// context error, and names the operation.
var (
	// ErrInvalid: a node or a hint lacks what it needs; repeating does not help.
	ErrInvalid = errors.New("invalid discovery call")
	// ErrClosed: the registry was closed.
	ErrClosed = errors.New("discovery closed")
)

// MaxIDBytes is the longest node id, and MaxMeta how many entries Meta has at
// most: what Consul takes.
const (
	MaxIDBytes = 255
	MaxMeta    = 60
)

// The functions below are for implementations of Registry.

// Fail returns the error of a failed call. It wraps kind and nothing else; a
// cause from below goes into detail as text.
func Fail(op, what string, kind error, detail string) error {
	if detail == "" {
		return fmt.Errorf("discovery.%s %q: %w", op, what, kind)
	}
	return fmt.Errorf("discovery.%s %q: %w: %s", op, what, kind, detail)
}

// Ended returns the error of a call whose context has ended, else nil.
func Ended(ctx context.Context, op, what string) error {
	if err := ctx.Err(); err != nil {
		return Fail(op, what, err, "")
	}
	return nil
}

// CheckNode returns ErrInvalid unless n can be registered.
func CheckNode(n Node) error {
	switch {
	case n.ID == "" || len(n.ID) > MaxIDBytes:
		return Fail("Register", n.ID, ErrInvalid, fmt.Sprintf("the id has %d bytes, want 1..%d", len(n.ID), MaxIDBytes))
	case n.Service == "":
		return Fail("Register", n.ID, ErrInvalid, "no service")
	case n.Address == "":
		return Fail("Register", n.ID, ErrInvalid, "no address")
	case len(n.Meta) > MaxMeta:
		return Fail("Register", n.ID, ErrInvalid, fmt.Sprintf("%d meta entries, want at most %d", len(n.Meta), MaxMeta))
	}
	return nil
}

// CheckHint returns ErrInvalid unless h says something. Epoch 0 means "never led".
func CheckHint(h Hint) error {
	if h.Epoch == 0 || h.Address == "" {
		return Fail("PutHint", fmt.Sprint(h.Shard), ErrInvalid, "a hint needs an epoch and an address")
	}
	return nil
}

// Clone returns a copy that shares nothing with n.
func (n Node) Clone() Node {
	n.Meta = maps.Clone(n.Meta)
	return n
}

// Equal reports whether two nodes are the same in everything.
func (n Node) Equal(o Node) bool {
	return n.ID == o.ID && n.Service == o.Service && n.Address == o.Address && n.Zone == o.Zone && maps.Equal(n.Meta, o.Meta)
}
