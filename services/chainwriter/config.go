package chainwriter

import (
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Config holds a chain-writer's settings. Zero values take the defaults.
type Config struct {
	NodeID  string
	Address string
	Zone    string
	// FlightBytes ends a flight, default 4 MiB.
	FlightBytes int
	// Linger is how long a flight waits for more entries once a lane is free,
	// default 0: it leaves at once if no other is in the air, else after 2 ms or
	// when none is, whichever is first.
	Linger time.Duration
	// Lanes is how many flights are in the air, default 4, at most chain.MaxLanes.
	Lanes int
	// PoolBytes limits the entries that wait or are in the air, default 256 MiB.
	PoolBytes int64
	// BacklogFlights limits the committed slots that are not absorbed yet,
	// default 1024; beyond it no flight leaves.
	BacklogFlights int
	// UnsettledBytes limits the bytes of committed slots that are not settled yet,
	// default 4 GiB, and UnsettledWindows the windows that they were absorbed in,
	// default 1024; beyond either no flight leaves.
	UnsettledBytes   int64
	UnsettledWindows int
	// HedgeAfter, StuckAfter: see chain.AppenderConfig.
	HedgeAfter time.Duration
	StuckAfter time.Duration
	// AttemptTimeout ends one call that the object store does not answer, default
	// 10 s.
	AttemptTimeout time.Duration
	// StopTimeout is how long a stop waits for the flights in the air and the end
	// of the chain, default 1 s: whoever recovers its shards does the rest.
	StopTimeout time.Duration
}

func (c Config) withDefaults() Config {
	if c.FlightBytes == 0 {
		c.FlightBytes = 4 << 20
	}
	if c.Lanes == 0 {
		c.Lanes = 4
	}
	c.Lanes = min(c.Lanes, chain.MaxLanes)
	if c.PoolBytes == 0 {
		c.PoolBytes = 256 << 20
	}
	if c.BacklogFlights == 0 {
		c.BacklogFlights = 1024
	}
	if c.UnsettledBytes == 0 {
		c.UnsettledBytes = 4 << 30
	}
	if c.UnsettledWindows == 0 {
		c.UnsettledWindows = 1024
	}
	if c.StopTimeout == 0 {
		c.StopTimeout = time.Second
	}
	return c
}

// Connections finds other chain-writers.
type Connections interface {
	// Address returns a connection to one node.
	Address(addr string) (grpc.ClientConnInterface, error)
}

// Deps are what a chain-writer works with.
type Deps struct {
	Objects objectstore.Store
	Index   indexpb.IndexServiceClient
	// Conns reaches other chain-writers, to tell whether they are there; nil: this
	// one cannot tell.
	Conns  Connections
	Log    *slog.Logger
	Meter  metric.Meter
	Tracer trace.Tracer
	Now    func() time.Time // default time.Now
}
