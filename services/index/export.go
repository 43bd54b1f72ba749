package index

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/export"
	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// ExportConfig holds the settings of exports. Zero values take the defaults.
type ExportConfig struct {
	// Interval is how often the metadata are exported; 0: never.
	Interval time.Duration
	// Rate limits the rows read per second, default 5000.
	Rate int
}

// Check refuses settings that make no sense, by the names of their flags.
func (c ExportConfig) Check() error {
	const least, most = time.Second, 7 * 24 * time.Hour
	if c.Interval != 0 && (c.Interval < least || c.Interval > most) {
		return fmt.Errorf("--export-interval must be 0, or %s to %s", least, most)
	}
	return nil
}

// Exporting is an index that also exports the metadata to the bucket.
//
// Exports are objects that no reader fetches and no cache keeps, so they are
// written and deleted at the object store itself. Deletion passes through the cache
// for the sake of what the cache holds.
type Exporting struct {
	*Service

	cfg     ExportConfig
	objects objectstore.Store
	log     *slog.Logger
	state   atomic.Pointer[indexpb.ExportState] // as it was read or written last; nil: not yet
}

// NewExporting returns an index that exports to an object store, as long as it
// runs.
func NewExporting(s *Service, cfg ExportConfig, objects objectstore.Store) (*Exporting, error) {
	if cfg.Interval < 0 || cfg.Rate < 0 {
		return nil, errors.New("index: interval and rate of exports are not negative")
	}
	if cfg.Interval > 0 && objects == nil {
		return nil, errors.New("index: exports need an object store")
	}
	if cfg.Rate == 0 {
		cfg.Rate = 5000
	}
	e := &Exporting{Service: s, cfg: cfg, objects: objects, log: s.log}
	_, err := s.meter.Int64ObservableGauge("nova.index.export.completed", metric.WithUnit("ms"),
		metric.WithDescription("When the newest complete export of the metadata began, since the Unix epoch; 0: none is complete. Not told while none are made."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			if st := e.state.Load(); st.GetIntervalMs() > 0 {
				o.Observe(st.GetCompletedBegunAt())
			}
			return nil
		}))
	if err != nil {
		return nil, fmt.Errorf("index: metrics: %w", err)
	}
	return e, nil
}

const (
	// exportLease is how long other indexes leave an export to one that is silent. With
	// short intervals it is as long as one of them, and shortLease at least.
	exportLease = 5 * time.Minute
	shortLease  = 15 * time.Second
	// exportPause is how long it takes at most until an export that is due, or that
	// failed, is begun.
	exportPause = 30 * time.Second
	// newPause is how long it takes at most until a constellation that is new is
	// exported first.
	newPause = time.Second
	// keptExports is how many complete exports stay.
	keptExports = 2
)

// Run exports until ctx ends.
func (e *Exporting) Run(ctx context.Context) error {
	tick := exportPause
	if e.cfg.Interval > 0 {
		tick = max(min(e.cfg.Interval/10, exportPause), 10*time.Millisecond)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		told, err := e.turn(ctx)
		if err != nil && ctx.Err() == nil {
			e.failed(ctx, err)
		}
		if told && err == nil && e.cfg.Interval == 0 {
			<-ctx.Done()
			return nil
		}
		if !told && err == nil {
			timer.Reset(min(tick, newPause)) // so that a node that is new is idle soon
			continue
		}
		timer.Reset(tick)
	}
}

// failed says that an export failed, loudly if none is complete for long.
func (e *Exporting) failed(ctx context.Context, err error) {
	st := e.state.Load()
	last := time.UnixMilli(st.GetCompletedBegunAt())
	if st.GetCompleted() > 0 && e.now().Sub(last) > 3*e.cfg.Interval+exportLease {
		e.log.ErrorContext(ctx, "for long no export of the metadata is complete: until two are, nothing is deleted from the bucket", "last_began", last, "err", err)
		return
	}
	e.log.WarnContext(ctx, "export of the metadata", "err", err)
}

// turn exports if it is time to. told: the row says how often this index exports.
func (e *Exporting) turn(ctx context.Context) (told bool, err error) {
	if _, err := e.read(ctx, constellationKey(), &indexpb.Constellation{}); err != nil {
		if reason.Is(err, reason.RowNotFound) {
			err = nil // nobody has opened it yet
		}
		return false, err
	}
	var st indexpb.ExportState
	_, err = e.read(ctx, exportKey(), &st)
	if err != nil && !reason.Is(err, reason.RowNotFound) {
		return false, err
	}
	interval := e.cfg.Interval.Milliseconds()
	if e.cfg.Interval > 0 {
		interval = max(interval, 1) // 0 would say that there are none
	}
	if st.GetIntervalMs() != interval {
		// Before the first export, so that nothing that it needs is deleted.
		changed, err := e.changeExports(ctx, func(st *indexpb.ExportState) error {
			st.IntervalMs = interval
			return nil
		})
		if err != nil {
			return false, err
		}
		st.Reset()
		proto.Merge(&st, changed)
	}
	e.state.Store(&st)
	now := e.now().UnixMilli()
	if e.cfg.Interval == 0 || st.GetCompleted() > 0 && now < st.GetCompletedBegunAt()+interval || st.GetHolder() != "" && now < st.GetLeasedUntil() {
		return true, nil
	}
	err = e.Export(ctx)
	if errors.Is(err, errLeased) {
		err = nil
	}
	return true, err
}

// errLeased means that another index exports.
var errLeased = errors.New("another index exports")

// Export makes one export now. Its steps, and what a crash after each leaves:
//
//  1. change the row of exports: begun, its id, and a lease, so that one index
//     exports at a time. Two at once are wasteful only: numbers and keys are their
//     own. A crash: an entry that a later export removes, with the objects.
//  2. remove what earlier ones left.
//  3. write the parts: an incomplete export, which is removed.
//  4. write the manifest: complete, if it is found by a restore; who waits for it
//     waits for the next.
//  5. change the row: completed. 6. remove the exports that are not kept: manifest
//     first, so that what is half removed is incomplete.
func (e *Exporting) Export(ctx context.Context) error {
	began := e.now()
	x := &exportRun{Exporting: e, id: stream.NewAttemptID().String(), began: began, paced: time.Now()}
	if err := x.begin(ctx); err != nil {
		return err
	}
	m, err := x.write(ctx)
	if err == nil {
		err = x.complete(ctx)
	}
	if err == nil {
		err = x.clean(ctx, false)
	}
	if err != nil {
		x.release(ctx)
		return fmt.Errorf("export %d, %s: %w", x.number, x.id, err)
	}
	size := uint64(0)
	for _, p := range m.GetParts() {
		size += p.GetSize()
	}
	e.log.InfoContext(ctx, "exported the metadata", "number", m.GetNumber(), "export", m.GetExportId(), "streams", m.GetHeads(), "chains", m.GetChains(),
		"parts", len(m.GetParts()), "bytes", size, "took", e.now().Sub(began))
	return nil
}

// lease is for how long an export holds the row. Two at once are wasteful only.
func (e *Exporting) lease() time.Duration {
	if e.cfg.Interval == 0 {
		return exportLease
	}
	return min(exportLease, max(e.cfg.Interval, shortLease))
}

// exportRun is one export.
type exportRun struct {
	*Exporting

	id     string
	number uint64
	began  time.Time
	renew  time.Time // when the lease is to be renewed
	paced  time.Time // what was read so far is within the rate until then
	out    *export.Writer
}

// begin is steps 1 and 2.
func (x *exportRun) begin(ctx context.Context) error {
	st, err := x.changeExports(ctx, func(st *indexpb.ExportState) error {
		now := x.now()
		if st.GetHolder() != "" && st.GetHolder() != x.id && now.UnixMilli() < st.GetLeasedUntil() {
			return errLeased
		}
		st.Begun++
		st.Holder, st.LeasedUntil = x.id, now.Add(x.lease()).UnixMilli()
		st.Exports = append(st.Exports, &indexpb.ExportEntry{ExportId: x.id, Number: st.GetBegun()})
		return nil
	})
	if err != nil {
		return err
	}
	x.number, x.renew = st.GetBegun(), x.now().Add(x.lease()/3)
	return x.clean(ctx, true)
}

var errExportLost = errors.New("another index has taken the exports over")

// holding changes the row as long as this run has the lease.
func (x *exportRun) holding(ctx context.Context, f func(*indexpb.ExportState)) (*indexpb.ExportState, error) {
	return x.changeExports(ctx, func(st *indexpb.ExportState) error {
		if st.GetHolder() != x.id {
			return errExportLost
		}
		f(st)
		return nil
	})
}

// keep renews the lease now and then.
func (x *exportRun) keep(ctx context.Context) error {
	if x.now().Before(x.renew) {
		return nil
	}
	_, err := x.holding(ctx, func(st *indexpb.ExportState) { st.LeasedUntil = x.now().Add(x.lease()).UnixMilli() })
	x.renew = x.now().Add(x.lease() / 3)
	return err
}

// release gives the lease back after a failure, as well as that goes.
func (x *exportRun) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = x.holding(ctx, func(st *indexpb.ExportState) { st.Holder, st.LeasedUntil = "", 0 })
}

// complete is step 5. The lease may be another's by now: the export is complete
// all the same.
func (x *exportRun) complete(ctx context.Context) error {
	_, err := x.changeExports(ctx, func(st *indexpb.ExportState) error {
		if x.number > st.GetCompleted() {
			st.Completed, st.CompletedBegunAt = x.number, x.began.UnixMilli()
		}
		for _, e := range st.GetExports() {
			if e.GetExportId() == x.id {
				e.Complete = true
			}
		}
		if st.GetHolder() == x.id {
			st.Holder, st.LeasedUntil = "", 0
		}
		return nil
	})
	return err
}

// clean removes the objects of exports that are not kept. An entry goes when they
// were removed twice, in different exports, since a put may have been under way.
func (x *exportRun) clean(ctx context.Context, again bool) error {
	var st indexpb.ExportState
	if _, err := x.read(ctx, exportKey(), &st); err != nil {
		return err
	}
	for _, entry := range notKept(&st, x.number) {
		if entry.GetRemoved() && !again {
			continue
		}
		if err := x.removeExport(ctx, entry.GetExportId()); err != nil {
			return fmt.Errorf("remove export %s: %w", entry.GetExportId(), err)
		}
		_, err := x.changeExports(ctx, func(st *indexpb.ExportState) error {
			st.Exports = slices.DeleteFunc(st.Exports, func(e *indexpb.ExportEntry) bool {
				return e.GetExportId() == entry.GetExportId() && entry.GetRemoved()
			})
			for _, e := range st.GetExports() {
				if e.GetExportId() == entry.GetExportId() {
					e.Removed, e.Complete = true, false
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// notKept returns the exports before one that are neither of the newest complete
// ones. A row that is an old read only names fewer: a number is complete for ever.
func notKept(st *indexpb.ExportState, before uint64) (out []*indexpb.ExportEntry) {
	complete := 0
	sorted := slices.SortedFunc(slices.Values(st.GetExports()), func(a, b *indexpb.ExportEntry) int {
		return int(int64(b.GetNumber()) - int64(a.GetNumber()))
	})
	for _, e := range sorted {
		if e.GetComplete() {
			complete++
		}
		if e.GetComplete() && complete <= keptExports || e.GetNumber() >= before {
			continue
		}
		out = append(out, e)
	}
	return out
}

// oldestKept is the number of the oldest of the newest complete exports: what those
// that are kept need is what this and later ones need. 0: none is complete.
func oldestKept(st *indexpb.ExportState) uint64 {
	var complete []uint64
	for _, e := range st.GetExports() {
		if e.GetComplete() {
			complete = append(complete, e.GetNumber())
		}
	}
	slices.Sort(complete)
	if len(complete) == 0 {
		return 0
	}
	return complete[max(len(complete)-keptExports, 0)]
}

// removeExport removes the objects of an export: the manifest, and then the parts,
// the last one first, so that those that are left are the first ones, and are found
// again. No listing: parts are written in order.
func (x *exportRun) removeExport(ctx context.Context, id string) error {
	if err := x.objects.Delete(ctx, export.ManifestKey(id)); err != nil {
		return err
	}
	n := 0
	for ; ; n++ {
		_, err := x.objects.GetRange(ctx, export.PartKey(id, n), objectstore.Range{Length: 1})
		if errors.Is(err, objectstore.ErrNotFound) {
			break
		}
		if err != nil {
			return err
		}
	}
	for n--; n >= 0; n-- {
		if err := x.objects.Delete(ctx, export.PartKey(id, n)); err != nil {
			return err
		}
	}
	return nil
}

// fences is how many rows are changed before rows are read; their partitions are
// spread over all servers of a metastore.
const fences = 64

func fenceKey(n int) metastore.Key {
	return metastore.Key{Partition: fmt.Sprintf("export-fence-%02d", n), Path: fmt.Sprintf("fence/%02d", n)}
}

// fence makes the reads that follow no older than the beginning of the export, as
// far as that can be had: see libs/export.
func (x *exportRun) fence(ctx context.Context) error {
	for n := range fences {
		err := retry(ctx, func() error {
			var r indexpb.ExportState
			v, err := x.read(ctx, fenceKey(n), &r)
			if reason.Is(err, reason.RowNotFound) {
				v, err = metastore.Absent, nil
			}
			if err != nil {
				return err
			}
			_, err = x.put(ctx, fenceKey(n), &indexpb.ExportState{Attempt: stream.NewAttemptID().String()}, v)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
