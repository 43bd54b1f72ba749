package chain

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Index is what this package needs of the index. Reads may be stale.
type Index interface {
	GetChain(ctx context.Context, id string) (*indexpb.Chain, int64, error)
	PutChain(ctx context.Context, r *indexpb.Chain, expected int64) (int64, error)
	PutDirectory(ctx context.Context, d *indexpb.Directory) error
	GetDirectory(ctx context.Context, chain string, from uint64) (*indexpb.Directory, error)
	Directories(ctx context.Context, chain string, from, to uint64) ([]*indexpb.Directory, error)
	ArmDue(ctx context.Context, d *indexpb.Due) (catalog.Marker, error)
	DropDue(ctx context.Context, m catalog.Marker) error
}

var _ Index = (*catalog.Client)(nil)

// Config holds a Store's settings. Zero values take the defaults.
type Config struct {
	// Profile of the chains, default standard. Express is UNIMPLEMENTED.
	Profile stream.Profile
	// CallTimeout ends one call that the object store does not answer, default
	// 10 s.
	CallTimeout time.Duration
	// Patience is how long a call to the object store is repeated, while it is
	// unavailable or throttles, before Seal, Absorb and Lookup give up, default
	// 10 s.
	Patience time.Duration
	Log      *slog.Logger
	Now      func() time.Time // default time.Now
}

// Store is the chains of one storage profile: their slots, their records and
// their directories. It is safe for concurrent use.
type Store struct {
	cfg     Config
	reg     Register
	objects objectstore.Store // of directories
	index   Index
	readers *otter.Cache[string, *openDirectory]

	rebuilding chan struct{} // holds a token while a damaged slot is in memory
}

// New returns the chains kept in an object store and an index. It fails with
// UNIMPLEMENTED for a profile that this version does not have.
func New(cfg Config, objects objectstore.Store, index Index) (*Store, error) {
	if cfg.Profile == 0 {
		cfg.Profile = stream.ProfileStandard
	}
	if cfg.Profile != stream.ProfileStandard {
		return nil, reason.Missing(cfg.Profile.String() + " storage")
	}
	if objects == nil || index == nil {
		return nil, errors.New("chain: an object store and an index are needed")
	}
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = 10 * time.Second
	}
	if cfg.Patience == 0 {
		cfg.Patience = 10 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Store{
		cfg: cfg, reg: NewRegister(objects, cfg.CallTimeout), objects: objects, index: index,
		rebuilding: make(chan struct{}, 1),
		readers: otter.Must(&otter.Options[string, *openDirectory]{
			MaximumWeight: directoryBytes,
			Weigher:       func(_ string, d *openDirectory) uint32 { return d.weight },
		}),
	}, nil
}

// Close ends what the Store runs by itself: the cache of directories.
func (s *Store) Close() { s.readers.StopAllGoroutines() }
