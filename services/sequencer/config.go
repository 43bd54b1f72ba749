package sequencer

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Config holds a sequencer's settings. Zero values take the defaults.
type Config struct {
	// NodeID names the node; unique in the constellation and stable over restarts.
	NodeID string
	// Address is where other services reach this one.
	Address string
	// Zone is the failure domain; chain-writers of the same zone come first.
	Zone string
	// LeaseTTL is how long others wait before they declare this life dead,
	// default 10 s. It is renewed every third of it.
	LeaseTTL time.Duration
	// Weight is the node's share of the shards next to others', default 1.
	Weight uint32
	// Shards is the number of shards of a constellation that is new, default 256.
	Shards uint32
	// FormerLivesDead says that no other life can be running, because a file
	// lock proves it: lives found at the start are declared dead at once, and the
	// own one cannot be, so its lease does not run out.
	FormerLivesDead bool
	// StopTimeout is how long a stop waits for appends under way, default 10 s.
	StopTimeout time.Duration
	// PoolBytes limits the bytes of appends under way, default 256 MiB. The
	// chain-writer's credit may limit it further.
	PoolBytes int64
	// TailWindowBytes limits the encoded chunks kept for readers, default 128 MiB.
	TailWindowBytes int64
	// CoordinateBytes limits what is kept to find the chunks of open streams,
	// default 256 MiB.
	CoordinateBytes int64
	// MaxSessions limits the open append sessions, default 4096.
	MaxSessions int
	// AppendTimeout ends an append whose caller set no earlier deadline,
	// default 30 s; its outcome is then UNKNOWN.
	AppendTimeout time.Duration
	// AdmissionTimeout is how long an append waits for room, default 10 s; then
	// it is refused with RESOURCE_EXHAUSTED.
	AdmissionTimeout time.Duration
	// IdleStream is how long an unused stream stays in memory, default 10 min.
	IdleStream time.Duration
	// SettledEvery is how often it is looked how far the chains of the shards that
	// are led here are settled, default 5 s, jittered.
	SettledEvery time.Duration
}

// Check refuses settings that make no sense, by the names of their flags.
func (c Config) Check() error {
	const (
		minLease, maxLease = time.Second, 24 * time.Hour
		maxWeight          = 1000
	)
	switch {
	case c.LeaseTTL < minLease || c.LeaseTTL > maxLease:
		return fmt.Errorf("--lease-ttl must be %s to %s", minLease, maxLease)
	case c.Weight < 1 || c.Weight > maxWeight:
		return fmt.Errorf("--weight must be 1 to %d", maxWeight)
	}
	return nil
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.LeaseTTL, 10*time.Second)
	set(&c.AppendTimeout, 30*time.Second)
	set(&c.StopTimeout, 10*time.Second)
	set(&c.AdmissionTimeout, 10*time.Second)
	set(&c.IdleStream, 10*time.Minute)
	set(&c.SettledEvery, 5*time.Second)
	size := func(b *int64, v int64) {
		if *b == 0 {
			*b = v
		}
	}
	size(&c.PoolBytes, 256<<20)
	size(&c.TailWindowBytes, 128<<20)
	size(&c.CoordinateBytes, 256<<20)
	if c.Shards == 0 {
		c.Shards = 256
	}
	if c.Weight == 0 {
		c.Weight = 1
	}
	if c.MaxSessions == 0 {
		c.MaxSessions = 4096
	}
	return c
}

// Connections finds the services a sequencer calls.
type Connections interface {
	// Address returns a connection to one node.
	Address(addr string) (grpc.ClientConnInterface, error)
}

// Registry is the part of discovery that a sequencer uses.
type Registry interface {
	Nodes(ctx context.Context, s discovery.Service) ([]discovery.Node, error)
	PutHint(ctx context.Context, h discovery.Hint) error
}

// Deps are what a sequencer works with.
type Deps struct {
	Index    indexpb.IndexServiceClient
	Conns    Connections
	Registry Registry
	Log      *slog.Logger
	Meter    metric.Meter
	// Now is the clock, default time.Now. Its monotonic reading is used for
	// leases, its wall reading for timestamps and leases.
	Now func() time.Time
}
