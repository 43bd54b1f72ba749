package failover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/metastore"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/services/index"
	"github.com/nova-stream/nova/services/novad"
	"github.com/nova-stream/nova/services/reaper"
	"github.com/nova-stream/nova/services/restore"
	"github.com/nova-stream/nova/services/settler"
)

const (
	pairLease = time.Second
	chains    = "chain/" // where slots are
)

// pair is two nodes with everything in them, in this process, that share their
// stores: each may lead, write and serve. Faults are between a node and its
// stores, so what happens to one does not happen to the other.
type pair struct {
	t       *testing.T
	alarms  *alarms
	objects objectstore.Store
	rows    *metafault.Store // only to be forked: nothing is done to it
	network *local.Network
	nodes   [2]*member
}

// upkeep sees the stores as no fault shows them.
func (p *pair) upkeep() *upkeep {
	p.t.Helper()
	svc, err := index.New(index.Config{}, index.Deps{Store: p.rows})
	if err != nil {
		p.t.Fatal(err)
	}
	return newUpkeep(indexpb.NewIndexServiceClient(direct{svc}), p.objects, true)
}

// export exports the metadata until it is ended, as an index of its own.
func (p *pair) export(every time.Duration) (end func()) {
	p.t.Helper()
	svc, err := index.New(index.Config{}, index.Deps{Store: p.rows})
	if err != nil {
		p.t.Fatal(err)
	}
	e, err := index.NewExporting(svc, index.ExportConfig{Interval: every}, p.objects)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := e.Run(ctx); err != nil {
			p.t.Error(err)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// restore ends the nodes, loses the metastore and restores it: nothing that the
// newest export needs was deleted.
func (p *pair) restore() {
	p.t.Helper()
	for _, m := range p.nodes {
		node := m.node
		m.node = nil
		if err := node.Close(); err != nil {
			p.t.Errorf("stop %s: %v", m.id, err)
		}
	}
	rows := metamem.New()
	defer rows.Close()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	report, err := restore.Run(p.t.Context(), restore.Deps{Objects: p.objects, Metastore: rows, Log: log})
	if err != nil || report.Damage > 0 {
		p.t.Errorf("restore: %+v, %v", report, err)
	}
	p.t.Logf("restored: %+v", report)
}

// member is one of a pair.
type member struct {
	pair    *pair
	id      string
	address string
	node    *novad.Node
	objects *fault.Store
	rows    *metafault.Store
	deaf    atomic.Bool // it hears of no other leader, and cannot renew its lease
}

func startPair(t *testing.T) *pair {
	t.Helper()
	alarms := listen(t)
	p := &pair{t: t, alarms: alarms, objects: mem.New(), rows: metafault.New(metamem.New()), network: local.NewNetwork()}
	t.Cleanup(func() {
		for _, m := range p.nodes {
			if m != nil && m.node != nil {
				if err := m.node.Close(); err != nil {
					t.Errorf("stop %s: %v", m.id, err)
				}
			}
		}
	})
	for i := range p.nodes {
		p.nodes[i] = &member{pair: p, id: fmt.Sprint("node-", i), address: "127.0.0.1:0"}
		if err := p.nodes[i].start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// start starts the node, as a new life, and waits until it is ready.
func (m *member) start(ctx context.Context) error {
	var cfg novad.Config
	var complaint bytes.Buffer
	args := []string{
		"--dev", "--listen", m.address, "--http-listen", "", "--metrics-listen", "", "--node-id", m.id, "--log-level", "error",
		"--lease-ttl", pairLease.String(), "--shards", "8", "--stop-timeout", "300ms",
	}
	code := config.Program{
		Name: "novad", Flags: cfg.Flags, Check: cfg.Check, Run: func(context.Context) error { return nil },
	}.Execute(ctx, args, nil, &complaint, &complaint)
	if code != 0 {
		return fmt.Errorf("novad %v: %s", args, complaint.String())
	}
	cfg.AdvertiseHost, cfg.Registry = "127.0.0.1", deafRegistry{m.pair.network.Registry(), m}
	cfg.WrapObjects = func(own objectstore.Store) objectstore.Store {
		m.objects = fault.New(keptObjects{m.pair.objects, own})
		return m.objects
	}
	cfg.WrapMetastore = func(own metastore.Store) metastore.Store {
		m.rows = m.pair.rows.ForkOf(keptRows{m.pair.rows, own, m.pair})
		return m.rows
	}
	// A slot that is stuck, a call that is lost, end while a round lasts.
	cfg.ChainWriter.StuckAfter, cfg.ChainWriter.AttemptTimeout = 2*time.Second, 500*time.Millisecond
	cfg.Sequencer.AppendTimeout = 2 * time.Second
	cfg.Sequencer.IdleStream = 200 * time.Millisecond // so that streams leave and come back
	// What is stored is settled and reclaimed while a round lasts.
	cfg.Settler = settler.Config{
		Interval: 100 * time.Millisecond, Probe: 50 * time.Millisecond, SettleAge: 200 * time.Millisecond,
		SettleBytes: 16 << 10, SettleMemory: settler.MinSettleMemory, ReadGrace: 100 * time.Millisecond,
	}
	cfg.Reaper = reaper.Config{
		Interval: 100 * time.Millisecond, Retry: 100 * time.Millisecond, LateAfter: 5 * time.Second, SealAfter: 2 * time.Second, Attempts: 1000,
	}
	cfg.Sequencer.SettledEvery, cfg.Reader.Young = 100*time.Millisecond, 10*time.Second
	cfg.Sequencer.TailWindowBytes, cfg.Cache.Bytes = 64<<10, 1<<20 // so that readers go to the store
	node, err := novad.Start(context.WithoutCancel(ctx), cfg)
	// Somebody's outgoing connection may have got its port meanwhile.
	for began := time.Now(); errors.Is(err, syscall.EADDRINUSE) && time.Since(began) < time.Minute; {
		time.Sleep(20 * time.Millisecond)
		node, err = novad.Start(context.WithoutCancel(ctx), cfg)
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", m.id, err)
	}
	m.node, m.address = node, node.Addr()
	return within(ctx, time.Minute, func(context.Context) error { return node.Ready() })
}

// kill ends the node as far as the stores see, at once; what was its process
// goes some time later.
func (m *member) kill() {
	m.objects.KillAt(1, fault.Before)
	m.rows.KillAt(1, metafault.Before)
}

// restart stops what is left of the node and starts it again.
func (m *member) restart(ctx context.Context) error {
	if m.node != nil {
		node := m.node
		m.node = nil
		// What a killed or deposed node says of its end is nobody's concern.
		_ = node.Close()
	}
	return m.start(ctx)
}

// ended says whether the node ended by itself.
func (m *member) ended() bool {
	select {
	case err := <-m.node.Failed():
		return err != nil
	default:
		return false
	}
}

// doors opens the nodes' public sides.
func (p *pair) doors() []*door {
	p.t.Helper()
	var all []*door
	for _, m := range p.nodes {
		d, err := openDoor(m.address)
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() { _ = d.conn.Close() })
		all = append(all, d)
	}
	return all
}

// keptObjects are not closed with the node; own is what the node opened.
type keptObjects struct {
	objectstore.Store
	own objectstore.Store
}

func (k keptObjects) Close() error { return k.own.Close() }

// keptRows are not closed with the node, and take no renewal of the lease of a
// member that is deaf: any node's index may carry it there.
type keptRows struct {
	metastore.Store
	own  metastore.Store
	pair *pair
}

func (k keptRows) Close() error { return k.own.Close() }

func (k keptRows) Put(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	if strings.HasPrefix(key.Path, "life/") {
		var life indexpb.Life
		if err := proto.Unmarshal(value, &life); err != nil {
			return 0, err
		}
		for _, m := range k.pair.nodes {
			if m != nil && m.deaf.Load() && life.GetState() == indexpb.LifeState_LIFE_STATE_LIVE && strings.HasPrefix(life.GetNodeId(), m.id) {
				return 0, metastore.Fail(metastore.OpPut, key.Path, metastore.ErrUnavailable, "injected: no renewal")
			}
		}
	}
	return k.Store.Put(ctx, key, value, expected)
}

// deafRegistry hands on no hints while its member is deaf.
type deafRegistry struct {
	discovery.Registry
	member *member
}

func (d deafRegistry) WatchHints(ctx context.Context) (<-chan []discovery.Hint, error) {
	from, err := d.Registry.WatchHints(ctx)
	if err != nil {
		return nil, err
	}
	to := make(chan []discovery.Hint)
	go func() { // ends with ctx, which ends from
		defer close(to)
		for hints := range from {
			for d.member.deaf.Load() && ctx.Err() == nil {
				time.Sleep(5 * time.Millisecond)
			}
			select {
			case to <- hints:
			case <-ctx.Done():
			}
		}
	}()
	return to, nil
}
