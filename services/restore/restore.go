package restore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/services/index"
)

// Deps are what a restore works with.
type Deps struct {
	Objects   objectstore.Store
	Metastore metastore.Store // empty, or left by a restore that was stopped
	Log       *slog.Logger
	Now       func() time.Time // default time.Now
}

// Report says what a restore did.
type Report struct {
	Export    string // its id
	Number    uint64
	BegunAt   time.Time // of the export: changes of settings after it are lost
	Streams   int       // that the export knows
	Chains    int
	Found     int // streams that it does not know, now in LostAndFound
	Remnants  int // streams of which only the last part was there: deleted ones
	Deleted   int // streams that were deleted after the export
	Unneeded  int // objects that nothing names
	Damage    int // what is not there and should be; each is logged
	Resumed   bool
	Skipped   int // newer exports that were damaged
	Settled   int // objects of settled records
	Unsettled int // directories that are to be settled
}

// LostAndFound is the bucket of streams of which only the records are known.
const LostAndFound = "lost-and-found"

// ErrInUse means that the metastore holds a constellation: nothing was done.
var ErrInUse = index.ErrInUse

// ErrNoExport means that the bucket holds no complete export.
var ErrNoExport = errors.New("there is no complete export of the metadata")

// step names the states of a restore, in order. One that is stopped in any of them
// is run again from the first; what it finds done stays.
type step string

const (
	// stepMark: put the row that keeps all programs out.
	stepMark step = "mark"
	// stepList: list the bucket. Nothing is written.
	stepList step = "list"
	// stepChoose: find the newest complete export, verify all of it, and note it in
	// the mark: from here on a repeat works from the same export.
	stepChoose step = "choose"
	// stepChains: per chain put its directories' rows, its record, seal it, and absorb
	// it to the cut. A record that is there was put by a try before, after the rows.
	stepChains step = "chains"
	// stepScan: read all directories that are not settled. Nothing is written.
	stepScan step = "scan"
	// stepShards: put the shards' rows.
	stepShards step = "shards"
	// stepStreams: put buckets, descriptors, heads and names.
	stepStreams step = "streams"
	// stepObjects: put the rows of settled objects, and markers of what nothing names.
	stepObjects step = "objects"
	// stepFinish: put the constellation's row in the place of the mark.
	stepFinish step = "finish"
)

// restore is one run.
type restore struct {
	objects objectstore.Store
	rows    *index.Rows
	index   *catalog.Client
	chains  *chain.Store
	log     *slog.Logger
	now     func() time.Time

	mu     sync.Mutex // guards report.Damage
	report Report
	before string // the export that a restore before had chosen; "": none
	bucket *listing
	source *source
	scan   *scan
	named  *named
	at     int64 // of markers: the same in every try, so that a repeat arms none twice
}

// Run restores. It MUST be the only user of the metastore. After an error it may be
// run again, with the same stores; ErrInUse and ErrNoExport are final.
func Run(ctx context.Context, deps Deps) (*Report, error) {
	if deps.Objects == nil || deps.Metastore == nil {
		return nil, errors.New("restore: an object store and a metastore are needed")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	r := &restore{objects: deps.Objects, log: deps.Log, now: deps.Now, named: &named{objects: map[string]*object{}}}
	var err error
	if r.rows, err = index.NewRows(deps.Metastore); err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	if err := r.open(ctx, deps.Metastore); err != nil {
		return &r.report, err
	}
	return &r.report, nil
}

// open connects to an index of its own, in this process, and runs.
func (r *restore) open(ctx context.Context, store metastore.Store) (err error) {
	svc, err := index.New(index.Config{}, index.Deps{Store: store, Log: r.log})
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	inproc, registry := rpc.NewInproc(rpc.Options{Log: r.log}), local.New()
	pool, err := rpc.NewPool(rpc.PoolConfig{Inproc: inproc, Registry: registry})
	if err != nil {
		return errors.Join(fmt.Errorf("restore: %w", err), registry.Close())
	}
	defer func() { err = errors.Join(err, pool.Close(), registry.Close()) }()
	server, err := inproc.Server(string(discovery.Index))
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	svc.Register(server)
	server.Start()
	defer func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		server.Stop(ended)
	}()
	conn, err := pool.Address(server.Address())
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	r.index = catalog.New(indexpb.NewIndexServiceClient(conn))
	if r.chains, err = chain.New(chain.Config{Log: r.log, Now: r.now}, r.objects, r.index); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer r.chains.Close()
	return r.run(ctx)
}

func (r *restore) run(ctx context.Context) error {
	for _, s := range []struct {
		step step
		do   func(context.Context) error
	}{
		{stepMark, r.mark},
		{stepList, r.list},
		{stepChoose, r.choose},
		{stepChains, r.restoreChains},
		{stepScan, r.readUnsettled},
		{stepShards, r.putShards},
		{stepStreams, r.putStreams},
		{stepObjects, r.putObjects},
		{stepFinish, r.finish},
	} {
		began := r.now()
		r.log.InfoContext(ctx, "restore", "step", string(s.step))
		if err := s.do(ctx); err != nil {
			return fmt.Errorf("restore: %s: %w", s.step, err)
		}
		r.log.DebugContext(ctx, "restore", "done", string(s.step), "took", r.now().Sub(began))
	}
	return nil
}

// mark is stepMark.
func (r *restore) mark(ctx context.Context) (err error) {
	r.before, r.report.Resumed, err = r.rows.BeginRestore(ctx)
	return err
}

// damaged logs what is not there and should be, and counts it.
func (r *restore) damaged(ctx context.Context, what string, args ...any) {
	r.mu.Lock()
	r.report.Damage++
	r.mu.Unlock()
	r.log.ErrorContext(ctx, "restore: damage", append([]any{"what", what}, args...)...)
}

// due is a marker that is due when programs start. id tells it from others of its
// queue.
func (r *restore) due(ctx context.Context, id string, d *indexpb.Due) error {
	d = proto.CloneOf(d)
	d.DueId, d.At = id, r.at
	// A fixed attempt: a repeat finds the row as it is.
	d.Attempt = r.source.manifest.GetExportId()
	return r.rows.Put(ctx, d)
}

// finish is stepFinish. Exports go on with higher numbers, and until one of them is
// complete nothing that a restore from these needs is deleted.
func (r *restore) finish(ctx context.Context) error {
	st := &indexpb.ExportState{IntervalMs: time.Hour.Milliseconds(), Attempt: r.source.manifest.GetExportId()}
	st.Completed, st.CompletedBegunAt = r.source.manifest.GetNumber(), r.source.manifest.GetBegunAt()
	for _, e := range r.bucket.exports {
		// One that is damaged is none of those that the next restore may use.
		e.Complete = e.GetComplete() && e.GetNumber() <= st.GetCompleted()
		st.Begun = max(st.GetBegun(), e.GetNumber())
		st.Exports = append(st.Exports, e)
	}
	if err := r.rows.Put(ctx, st); err != nil {
		return err
	}
	c := proto.CloneOf(r.source.constellation)
	c.Incarnation++
	return r.rows.FinishRestore(ctx, c)
}

// shardsOf is how many shards the constellation has.
func (r *restore) shardsOf() uint32 { return r.source.constellation.GetShardCount() }
