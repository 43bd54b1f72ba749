package stream

import (
	"crypto/rand"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/oklog/ulid/v2"
)

// ID identifies one stream for ever. It is a ULID, so a name that is deleted
// and created again names a new stream.
type ID ulid.ULID

// ChainID identifies one chain: one chain-writer life's sequence of slots of
// one storage profile.
type ChainID ulid.ULID

// LifeID identifies one run of one process; a restart is a new life.
type LifeID ulid.ULID

// FlightID identifies one flight: the writer recognises its own bundle in a
// slot by it.
type FlightID ulid.ULID

// AttemptID identifies one attempt at a compare-and-set or at writing an
// object: whoever reads the value back knows whether it is their own.
type AttemptID ulid.ULID

// NewID returns a fresh stream id.
func NewID() ID { return ID(newULID()) }

// NewChainID returns a fresh chain id.
func NewChainID() ChainID { return ChainID(newULID()) }

// NewLifeID returns a fresh life id.
func NewLifeID() LifeID { return LifeID(newULID()) }

// NewFlightID returns a fresh flight id.
func NewFlightID() FlightID { return FlightID(newULID()) }

// NewAttemptID returns a fresh attempt id.
func NewAttemptID() AttemptID { return AttemptID(newULID()) }

// newULID uses crypto/rand without monotonic entropy: ids made in the same
// millisecond by different processes must not collide, and nothing relies on
// their order.
func newULID() ulid.ULID { return ulid.MustNew(ulid.Timestamp(time.Now()), rand.Reader) }

func (id ID) String() string        { return ulid.ULID(id).String() }
func (id ChainID) String() string   { return ulid.ULID(id).String() }
func (id LifeID) String() string    { return ulid.ULID(id).String() }
func (id FlightID) String() string  { return ulid.ULID(id).String() }
func (id AttemptID) String() string { return ulid.ULID(id).String() }

// IsZero reports whether the id was never set.
func (id ID) IsZero() bool { return id == ID{} }

// IsZero reports whether the id was never set.
func (id ChainID) IsZero() bool { return id == ChainID{} }

// IsZero reports whether the id was never set.
func (id LifeID) IsZero() bool { return id == LifeID{} }

// ParseID parses the 26-character text form of a stream id.
func ParseID(s string) (ID, error) {
	u, err := parseULID("stream id", s)
	return ID(u), err
}

// ParseChainID parses the 26-character text form of a chain id.
func ParseChainID(s string) (ChainID, error) {
	u, err := parseULID("chain id", s)
	return ChainID(u), err
}

// ParseLifeID parses the 26-character text form of a life id.
func ParseLifeID(s string) (LifeID, error) {
	u, err := parseULID("life id", s)
	return LifeID(u), err
}

// ParseFlightID parses the 26-character text form of a flight id.
func ParseFlightID(s string) (FlightID, error) {
	u, err := parseULID("flight id", s)
	return FlightID(u), err
}

func parseULID(what, s string) (ulid.ULID, error) {
	u, err := ulid.ParseStrict(s)
	if err != nil {
		return ulid.ULID{}, fmt.Errorf("%s %q is not a ULID: %w", what, s, err)
	}
	return u, nil
}

// Shard returns the shard of a stream in a constellation of n shards. It is a
// function of the id alone and never changes: FNV-1a over its 16 bytes.
func (id ID) Shard(n uint32) Shard {
	h := fnv.New32a()
	_, _ = h.Write(id[:])
	return Shard(h.Sum32() % n)
}
