package novad

import (
	"errors"
	"fmt"
	"time"

	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/services/cache"
	"github.com/nova-stream/nova/services/chainwriter"
	"github.com/nova-stream/nova/services/gateway"
	"github.com/nova-stream/nova/services/index"
	"github.com/nova-stream/nova/services/node"
	"github.com/nova-stream/nova/services/reader"
	"github.com/nova-stream/nova/services/reaper"
	"github.com/nova-stream/nova/services/sequencer"
	"github.com/nova-stream/nova/services/settler"
)

// DefaultDir is where data goes when no backend is named.
const DefaultDir = "./nova-data"

// Config holds a node's settings. Zero values take the defaults; a program
// fills it by Flags, a test by hand.
type Config struct {
	node.Settings
	node.Public
	Dev       bool   // everything in memory
	Dir       string // everything below it; neither Dev nor Dir nor Oxia: DefaultDir
	Metastore node.Metastore
	Objects   node.Objects
	// AdvertiseHost is where other nodes reach this one's services, each at a
	// port of its own. Used with Consul or Registry only.
	AdvertiseHost string

	Sequencer   sequencer.Config
	ChainWriter chainwriter.Config
	Reader      reader.Config
	Settler     settler.Config
	Reaper      reaper.Config
	Cache       cache.Config
	Gateway     gateway.Config
	Export      index.ExportConfig

	// The rest is for tests.

	// WrapObjects and WrapMetastore put something around the stores, or replace
	// them; what they return is closed with the node. Metrics see what callers do.
	WrapObjects   func(objectstore.Store) objectstore.Store
	WrapMetastore func(metastore.Store) metastore.Store
	// Registry joins the node to others that share its stores. It is closed with
	// the node.
	Registry discovery.Registry
}

// Flags declares the settings.
func (c *Config) Flags(f *config.Flags) {
	f.Bool(&c.Dev, "dev", false, "keep everything in memory, for trying out: all is gone when the program ends")
	f.String(&c.Dir, "dir", "", "keep everything in this directory, one durable node; empty: "+DefaultDir+", unless --oxia and --s3-bucket are given")
	c.Public.Flags(f)
	c.Settings.Flags(f, "127.0.0.1:7782")
	f.String(&c.AdvertiseHost, "advertise-host", "", "with --consul: host where the other nodes reach this one")
	c.Metastore.Flags(f)
	c.Objects.Flags(f)
	sequencerFlags(f, &c.Sequencer)
	chainWriterFlags(f, &c.ChainWriter)
	settlerFlags(f, &c.Settler)
	f.MiB(&c.Cache.Bytes, "cache-mib", 256, "MiB of objects kept in memory for readers")
	f.MiB(&c.Gateway.DeliveryBytes, "delivery-mib", 256, "MiB of records that are fetched for callers, or sent to them and not taken yet; a subscription counts for at least 32 KiB")
	exportFlags(f, &c.Export)
}

// exportFlags declares what nova-index does too.
func exportFlags(f *config.Flags, c *index.ExportConfig) {
	f.Duration(&c.Interval, "export-interval", time.Hour, "how often the metadata are exported to the bucket, which a restore needs; nothing is deleted before an export no longer needs it; 0: never")
}

// sequencerFlags declares what nova-sequencer does too.
func sequencerFlags(f *config.Flags, c *sequencer.Config) {
	f.Duration(&c.LeaseTTL, "lease-ttl", 10*time.Second, "how long others wait for a silent sequencer before they take its shards")
	f.Uint32(&c.Weight, "weight", 1, "share of the shards that this node leads, next to the weights of others; 1 to 1000")
	f.Uint32(&c.Shards, "shards", 256, "number of shards of a deployment that is new; later it never changes")
	f.MiB(&c.PoolBytes, "append-pool-mib", 256, "MiB of appends under way")
	f.MiB(&c.TailWindowBytes, "tail-window-mib", 128, "MiB of recent records kept for readers")
	f.MiB(&c.CoordinateBytes, "coordinates-mib", 256, "MiB of places of records that are not settled yet")
	f.Int(&c.MaxSessions, "max-producer-sessions", 4096, "append sessions open at once")
}

// chainWriterFlags declares what nova-chain-writer does too.
func chainWriterFlags(f *config.Flags, c *chainwriter.Config) {
	f.Int(&c.FlightBytes, "flight-bytes", 4<<20, "bytes after which a flight leaves")
	f.Duration(&c.Linger, "linger", 0, "how long a flight waits for more; 0: only while others are in the air, 2ms at most")
	f.Int(&c.Lanes, "put-lanes", 4, "flights in the air at once")
	f.MiB(&c.PoolBytes, "flight-pool-mib", 256, "MiB of entries that wait for a flight or are in one")
	f.Int(&c.BacklogFlights, "chain-backlog-flights", 1024, "committed flights of a chain not yet absorbed; beyond it appends wait")
	f.MiB(&c.UnsettledBytes, "chain-unsettled-mib", 4096, "MiB of committed flights of a chain not yet settled; beyond it appends wait")
}

// settlerFlags declares what nova-settler does too; --read-grace is nova-reaper's
// as well.
func settlerFlags(f *config.Flags, c *settler.Config) {
	f.Duration(&c.SettleAge, "settle-age", 10*time.Minute, "how long what was absorbed waits at most before it is settled")
	f.MiB(&c.SettleBytes, "settle-mib", 1024, "MiB of entries of one chain that are settled at once, without waiting")
	f.MiB(&c.SettleMemory, "settle-memory-mib", 256, "MiB that settling holds in memory, at least 64")
	f.MiB(&c.SettleRate, "settle-rate-mib", 0, "MiB per second that settling reads from slots; 0: no limit")
	f.Duration(&c.ReadGrace, "read-grace", 10*time.Minute, "how long readers may need what is settled again, trimmed or deleted")
}

// Check completes and validates.
func (c *Config) Check() error {
	if err := errors.Join(c.Settings.Check(), c.Public.Check(), c.Sequencer.Check(), c.Settler.Check()); err != nil {
		return err
	}
	meta, objects := c.Metastore.Oxia != "", c.Objects.S3.Bucket != ""
	switch {
	case c.Dev && (c.Dir != "" || meta || objects):
		return errors.New("--dev keeps everything in memory: it does not go with --dir, --oxia or --s3-bucket")
	case meta != objects:
		return errors.New("--oxia and --s3-bucket go together: a node on disk has both in --dir")
	case c.Dir != "" && meta:
		return errors.New("--dir does not go with --oxia and --s3-bucket")
	case c.Consul != "" && !meta:
		return errors.New("--consul needs storage that the nodes share: --oxia and --s3-bucket")
	case c.Consul != "" && c.AdvertiseHost == "":
		return errors.New("--consul needs --advertise-host: where the other nodes reach this one")
	}
	if err := errors.Join(c.checkBudgets(), c.Gateway.Check()); err != nil {
		return err
	}
	if err := c.Export.Check(); err != nil {
		return err
	}
	c.place()
	if err := errors.Join(c.Metastore.Check(), c.Objects.Check()); err != nil {
		return fmt.Errorf("storage: %w", err)
	}
	return nil
}

// place tells both backends where they are.
func (c *Config) place() {
	if !c.Dev && c.Metastore.Oxia == "" && c.Dir == "" {
		c.Dir = DefaultDir
	}
	c.Metastore.Memory, c.Objects.Memory = c.Dev, c.Dev
	c.Metastore.Dir, c.Objects.Dir = c.Dir, c.Dir
}

func (c *Config) checkBudgets() error {
	const (
		minPool = 16 << 20 // bytes: several of the largest batches
	)
	for _, b := range []struct {
		flag  string
		value int64
	}{
		{"--shards", int64(c.Sequencer.Shards)}, {"--flight-bytes", int64(c.ChainWriter.FlightBytes)},
		{"--put-lanes", int64(c.ChainWriter.Lanes)}, {"--chain-backlog-flights", int64(c.ChainWriter.BacklogFlights)},
		{"--chain-unsettled-mib", c.ChainWriter.UnsettledBytes},
		{"--tail-window-mib", c.Sequencer.TailWindowBytes}, {"--coordinates-mib", c.Sequencer.CoordinateBytes},
		{"--cache-mib", c.Cache.Bytes}, {"--max-producer-sessions", int64(c.Sequencer.MaxSessions)},
	} {
		// 0 would mean the default, which is not what was asked for.
		if b.value < 1 {
			return fmt.Errorf("%s must be above 0", b.flag)
		}
	}
	switch {
	case c.ChainWriter.Lanes > chain.MaxLanes:
		return fmt.Errorf("--put-lanes must be at most %d", chain.MaxLanes)
	case c.Sequencer.PoolBytes < minPool:
		return fmt.Errorf("--append-pool-mib must be at least %d", minPool>>20)
	case c.ChainWriter.PoolBytes < minPool:
		return fmt.Errorf("--flight-pool-mib must be at least %d", minPool>>20)
	case c.Settler.SettleBytes > c.ChainWriter.UnsettledBytes/2:
		// Appends would wait for what is not settled yet because it is too little.
		return errors.New("--settle-mib must be at most half of --chain-unsettled-mib")
	}
	return nil
}

// FormerLivesDead reports whether no former life can still be running: the lock
// of the directory proves it, and memory of one's own has none.
func (c *Config) FormerLivesDead() bool {
	return c.Registry == nil && c.Consul == "" && (c.Metastore.Memory || c.Metastore.Dir != "")
}

func (c *Config) withDefaults() {
	c.place()
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.NodeID == "" {
		c.NodeID = "novad"
	}
	if c.StopTimeout == 0 {
		c.StopTimeout = 10 * time.Second
	}
	if c.AdvertiseHost == "" {
		c.AdvertiseHost = "127.0.0.1"
	}
	if c.Reader.DeliveryBytes == 0 {
		c.Reader.DeliveryBytes = c.Gateway.DeliveryBytes
	}
	// One number for all who may be the first to open the constellation.
	if c.Gateway.Shards == 0 {
		c.Gateway.Shards = c.Sequencer.Shards
	}
}

// storage says where the data is, for people.
func (c *Config) storage() string {
	switch {
	case c.Dev:
		return "memory: all is gone when the program ends"
	case c.Dir != "":
		return "directory " + c.Dir
	}
	return "bucket " + c.Objects.S3.Bucket + ", oxia " + c.Metastore.Oxia
}
