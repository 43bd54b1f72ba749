package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
)

// Errors beside ErrUnavailable. Every error wraps exactly one of them, or a
// context error, and names the operation.
var (
	// ErrInvalid: a node or a hint lacks what it needs; repeating does not help.
	ErrInvalid = errors.New("invalid discovery call")
	// ErrClosed: the registry was closed.
	ErrClosed = errors.New("discovery closed")
)

// Limits of a node: what Consul takes, with room for what we add.
const (
	// MaxIDBytes is the longest node id, in bytes of printable ASCII.
	MaxIDBytes = 255
	// MaxMeta is how many entries Meta has at most.
	MaxMeta = 60
	// MaxMetaKeyBytes is the longest key of Meta: letters, digits, '-', '_'.
	MaxMetaKeyBytes = 100
	// MaxMetaValueBytes is the longest value of Meta, and the longest Zone.
	MaxMetaValueBytes = 512
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
	invalid := func(format string, args ...any) error {
		return Fail("Register", n.ID, ErrInvalid, fmt.Sprintf(format, args...))
	}
	switch {
	case n.ID == "" || len(n.ID) > MaxIDBytes:
		return invalid("the id has %d bytes, want 1..MaxIDBytes, %d", len(n.ID), MaxIDBytes)
	case strings.ContainsFunc(n.ID, func(r rune) bool { return r < ' ' || r > '~' }):
		return invalid("the id is not printable ASCII")
	case n.Service == "":
		return invalid("no service")
	case n.Address == "":
		return invalid("no address")
	case len(n.Zone) > MaxMetaValueBytes:
		return invalid("the zone has %d bytes, MaxMetaValueBytes is %d", len(n.Zone), MaxMetaValueBytes)
	case len(n.Meta) > MaxMeta:
		return invalid("%d meta entries, MaxMeta is %d", len(n.Meta), MaxMeta)
	}
	for k, v := range n.Meta {
		if k == "" || len(k) > MaxMetaKeyBytes || strings.Trim(k, metaKeyBytes) != "" {
			return invalid("meta key %q is not 1..MaxMetaKeyBytes, %d, letters, digits, '-' and '_'", k, MaxMetaKeyBytes)
		}
		if len(v) > MaxMetaValueBytes {
			return invalid("meta value of %q has %d bytes, MaxMetaValueBytes is %d", k, len(v), MaxMetaValueBytes)
		}
	}
	return nil
}

const metaKeyBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

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
