package novad

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/objectstore"
)

// Config holds the settings of one process. Flags gives it the defaults.
type Config struct {
	Dev           bool
	Dir           string
	Listen        string
	HTTPListen    string
	MetricsListen string
	NodeID        string
	Auth          string
	LogLevel      string

	LeaseTTL    time.Duration
	Linger      time.Duration
	FlightBytes int
	PutLanes    int

	AppendPool          int64
	ChainBacklogFlights int
	TailWindow          int64
	Coordinates         int64
	CachePages          int64
	MaxProducerSessions int

	// Objects and Metadata, if set, wrap the backends: for tests with faults.
	Objects  func(objectstore.Store) objectstore.Store
	Metadata func(metastore.Store) metastore.Store
	// What the process reports to; zero values report nothing.
	Log    *slog.Logger
	Tracer trace.TracerProvider
	Meter  metric.MeterProvider
}

// defaultDir is where a node keeps its data when no backend is named.
const defaultDir = "./nova-data"

// Flags declares the settings.
func (c *Config) Flags(f *config.Flags) {
	f.Bool(&c.Dev, "dev", false, "keep metadata and objects in memory: everything is lost when the process ends")
	f.String(&c.Dir, "dir", "", "keep metadata and objects in this directory, durably (default "+defaultDir+" without --dev)")
	f.String(&c.Listen, "listen", "127.0.0.1:7780", "host:port of gRPC: public services, reflection, health")
	f.String(&c.HTTPListen, "http-listen", "127.0.0.1:7781", "host:port of JSON over HTTP")
	f.String(&c.MetricsListen, "metrics-listen", "127.0.0.1:7782", "host:port of /metrics, /healthz, /readyz, /debug/pprof and a status page")
	f.String(&c.NodeID, "node-id", "", "name of the node, stable over restarts (default the host's name)")
	f.String(&c.Auth, "auth", "", "off: whoever reaches the listeners may do everything; must be said unless every public listener is on loopback")
	f.String(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.Duration(&c.LeaseTTL, "lease-ttl", 10*time.Second, "how long others wait before they declare a silent sequencer dead")
	f.Duration(&c.Linger, "linger", 0, "how long a flight waits for more entries; 0 sends at once when a lane is free")
	f.Int(&c.FlightBytes, "flight-bytes", 4<<20, "size at which a flight leaves, bytes")
	f.Int(&c.PutLanes, "put-lanes", 4, "flights in the air at once")
	f.MiB(&c.AppendPool, "append-pool-mib", 256, "appends under way, MiB")
	f.Int(&c.ChainBacklogFlights, "chain-backlog-flights", 1024, "committed slots that are not absorbed yet")
	f.MiB(&c.TailWindow, "tail-window-mib", 128, "newest chunks kept for readers, MiB")
	f.MiB(&c.Coordinates, "coordinates-mib", 256, "coordinates of the chunks of open streams, MiB")
	f.MiB(&c.CachePages, "cache-mib", 256, "pages of objects kept for readers, MiB")
	f.Int(&c.MaxProducerSessions, "max-producer-sessions", 4096, "append sessions open at once")
}

// Complete fills in what depends on other settings and checks all of them.
func (c *Config) Complete() error {
	if c.Dev && c.Dir != "" {
		return errors.New("--dev keeps everything in memory and --dir on disk: name one of them")
	}
	if !c.Dev && c.Dir == "" {
		c.Dir = defaultDir
	}
	if c.NodeID == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--node-id: the host has no name: %w", err)
		}
		c.NodeID = name
	}
	switch c.Auth {
	case "off":
	case "":
		for flag, address := range map[string]string{"--listen": c.Listen, "--http-listen": c.HTTPListen} {
			if !loopback(address) {
				return fmt.Errorf("%s %s can be reached from other machines: say --auth off if everyone there may do everything", flag, address)
			}
		}
		c.Auth = "off"
	case "tokens":
		return errors.New("--auth tokens is not available in this version; use off")
	default:
		return fmt.Errorf("--auth must be off, is %q", c.Auth)
	}
	positive := []struct {
		flag string
		v    int64
	}{
		{"--lease-ttl", int64(c.LeaseTTL)}, {"--flight-bytes", int64(c.FlightBytes)}, {"--put-lanes", int64(c.PutLanes)},
		{"--append-pool-mib", c.AppendPool}, {"--chain-backlog-flights", int64(c.ChainBacklogFlights)}, {"--tail-window-mib", c.TailWindow},
		{"--coordinates-mib", c.Coordinates}, {"--cache-mib", c.CachePages}, {"--max-producer-sessions", int64(c.MaxProducerSessions)},
	}
	for _, p := range positive {
		if p.v <= 0 {
			return fmt.Errorf("%s must be above 0", p.flag)
		}
	}
	const largestFlight = 32 << 20
	switch {
	case c.Linger < 0:
		return errors.New("--linger must not be negative")
	case c.LeaseTTL < time.Second:
		return errors.New("--lease-ttl must be at least 1s")
	case c.FlightBytes > largestFlight:
		return fmt.Errorf("--flight-bytes must be at most %d", largestFlight)
	case c.AppendPool < 16<<20:
		return errors.New("--append-pool-mib must be at least 16")
	}
	return nil
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return true // the listener says what is wrong with it
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
