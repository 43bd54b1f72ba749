package index

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/export"
	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore"
	objectfault "github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// exporter is an index of its own that exports.
func (w *world) exporter(objects objectstore.Store) (*Exporting, *fault.Store) {
	w.t.Helper()
	s, f := w.process()
	e, err := NewExporting(s, ExportConfig{Interval: time.Hour, Rate: 1_000_000}, objects)
	if err != nil {
		w.t.Fatal(err)
	}
	return e, f
}

// populate makes a row of every kind.
func (w *world) populate(s *Service) {
	w.t.Helper()
	ctx := w.t.Context()
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	for i := range 2 {
		b := fmt.Sprint("bucket", i)
		_, err := s.CreateBucket(ctx, &indexpb.CreateBucketRequest{Bucket: b})
		must(err)
		for j := range 3 {
			_, err := s.CreateStream(ctx, &indexpb.CreateStreamRequest{Bucket: b, Stream: fmt.Sprint("s", j)})
			must(err)
		}
	}
	c := stream.NewChainID().String()
	chain := &indexpb.Chain{
		ChainId: c, State: indexpb.ChainState_CHAIN_STATE_OPEN, AbsorbingTo: 128, AbsorbedTo: 128, SettledTo: 64, Attempt: stream.NewAttemptID().String(),
	}
	for _, from := range []uint64{0, 64} {
		_, err := s.PutDirectory(ctx, &indexpb.PutDirectoryRequest{Directory: &indexpb.Directory{
			ChainId: c, From: from, To: from + 64, Object: fmt.Sprint("directory/", from), Attempt: stream.NewAttemptID().String(),
		}})
		must(err)
	}
	_, err := s.PutChain(ctx, &indexpb.PutChainRequest{Chain: chain, ExpectedVersion: -1})
	must(err)
	_, err = s.PutShard(ctx, &indexpb.PutShardRequest{Shard: &indexpb.Shard{
		Shard: 1, Epoch: 3, HolderLife: stream.NewLifeID().String(), State: indexpb.ShardState_SHARD_STATE_RECOVERING, Attempt: stream.NewAttemptID().String(),
	}, ExpectedVersion: -1})
	must(err)
	// A stream that is being deleted: no name leads to it.
	made, err := s.CreateStream(ctx, &indexpb.CreateStreamRequest{Bucket: "bucket0", Stream: "deleted"})
	must(err)
	id := made.GetStream().GetStreamId()
	_, err = s.PutDue(ctx, &indexpb.PutDueRequest{Due: &indexpb.Due{Queue: "delete", DueId: id, StreamId: id, Attempt: stream.NewAttemptID().String()}, ExpectedVersion: -1})
	must(err)
	must(s.freeName(ctx, "bucket0", "deleted", id))
}

// held are the exports that a bucket holds: complete ones by number, and how many
// objects belong to none of them.
func held(ctx context.Context, t testing.TB, objects objectstore.Store) (complete map[uint64]map[string]int, stray int) {
	t.Helper()
	infos, err := objects.List(ctx, export.Prefix, "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	parts, manifests := map[string]int{}, []string{}
	for _, o := range infos {
		id, n, ok := export.ParseKey(o.Key)
		if !ok {
			t.Fatalf("a foreign key %s", o.Key)
		}
		if parts[id]++; n < 0 {
			manifests = append(manifests, id)
		}
	}
	complete = map[uint64]map[string]int{}
	for _, id := range manifests {
		m, err := export.ReadManifest(ctx, objects, id)
		if err != nil {
			t.Fatal(err)
		}
		kinds := map[string]int{}
		if err := export.Each(ctx, objects, m, func(r *indexpb.ExportRecord) error {
			kinds[strings.TrimPrefix(fmt.Sprintf("%T", r.GetRow()), "*indexpb.ExportRecord_")]++
			return nil
		}); err != nil {
			t.Fatalf("export %d: %v", m.GetNumber(), err)
		}
		complete[m.GetNumber()] = kinds
		delete(parts, id)
	}
	for _, n := range parts {
		stray += n
	}
	return complete, stray
}

func TestAnExportHoldsEveryKindOfRow(t *testing.T) {
	w := newWorld(t)
	objects := mem.New()
	e, _ := w.exporter(objects)
	w.populate(e.Service)
	if err := e.Export(t.Context()); err != nil {
		t.Fatal(err)
	}
	complete, stray := held(t.Context(), t, objects)
	want := map[string]int{"Constellation": 1, "Chain": 1, "Directory": 2, "Shard": 1, "Bucket": 2, "Name": 6, "Descriptor_": 6, "Head": 7, "Due": 1}
	if got := complete[1]; stray > 0 || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, %d stray, want %v", got, stray, want)
	}
	st, err := e.GetExportState(t.Context(), &indexpb.GetExportStateRequest{})
	if err != nil || st.GetBegun() != 1 || st.GetCompleted() != 1 || st.GetCompletedBegunAt() == 0 || st.GetOldestKept() != 1 {
		t.Errorf("%v, %v", st, err)
	}
}

// I11: an index may die at any call, on either store and either side of it. The next
// export is complete, begun and completed never go back, a complete export is whole,
// two of them stay, and nothing of the dead one is left for ever.
func TestExportDiesAnywhere(t *testing.T) {
	for _, store := range []string{"metadata", "objects"} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprint(store, after), func(t *testing.T) {
				w := newWorld(t)
				inner := mem.New()
				first, _ := w.exporter(inner)
				w.populate(first.Service)
				for range 2 {
					if err := first.Export(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				last := &indexpb.GetExportStateResponse{}
				state := func() *indexpb.GetExportStateResponse {
					t.Helper()
					st, err := first.GetExportState(t.Context(), &indexpb.GetExportStateRequest{})
					if err != nil || st.GetBegun() < last.GetBegun() || st.GetCompleted() < last.GetCompleted() || st.GetCompleted() > st.GetBegun() {
						t.Fatalf("%v after %v, %v", st, last, err)
					}
					last = st
					return st
				}
				died := 0
				for n := 1; ; n++ {
					of := objectfault.New(inner)
					e, mf := w.exporter(of)
					ctx, cancel := context.WithCancel(t.Context())
					var killed <-chan struct{}
					if store == "metadata" {
						mf.KillAt(n, fault.When(when(after)))
						killed = mf.Killed()
					} else {
						of.KillAt(n, objectfault.When(when(after)))
						killed = of.Killed()
					}
					go func() {
						select {
						case <-killed:
						case <-ctx.Done():
						}
						cancel()
					}()
					_ = e.Export(ctx)
					cancel()
					dead := false
					select {
					case <-killed:
						dead = true
					default:
					}
					if !dead {
						break
					}
					died++
					had := state()
					if complete, _ := held(t.Context(), t, inner); len(complete) < 2 && store == "metadata" || complete[had.GetCompleted()] == nil {
						t.Fatalf("killed at %d: complete are %v, the row says %v", n, complete, had)
					}
					w.pass(2 * exportLease)
					next, _ := w.exporter(inner)
					if err := next.Export(t.Context()); err != nil {
						t.Fatalf("after a kill at %d: %v", n, err)
					}
					if got := state(); got.GetCompleted() != got.GetBegun() {
						t.Fatalf("killed at %d: %v", n, got)
					}
					if store == "metadata" && n > 60 && n < 190 {
						n += 9 // fences, one like the other
					}
				}
				t.Log(died, "deaths")
				if died < 5 {
					t.Errorf("%d deaths only", died)
				}
				for range 3 {
					if err := first.Export(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				complete, stray := held(t.Context(), t, inner)
				if len(complete) != keptExports || stray > 0 || complete[state().GetCompleted()] == nil {
					t.Errorf("%d complete, %d stray objects", len(complete), stray)
				}
				var st indexpb.ExportState
				if _, err := first.read(t.Context(), exportKey(), &st); err != nil || len(st.GetExports()) > keptExports+1 {
					t.Errorf("%d exports are noted, %v", len(st.GetExports()), err)
				}
			})
		}
	}
}

func when(after bool) int {
	if after {
		return int(fault.After)
	}
	return int(fault.Before)
}

// One index at a time, until its lease has run out; two that export at once each
// make an export of their own.
func TestExportLease(t *testing.T) {
	for interval, lease := range map[time.Duration]time.Duration{time.Hour: exportLease, 2 * time.Second: shortLease, time.Minute: time.Minute} {
		t.Run(interval.String(), func(t *testing.T) { exportsInTurn(t, interval, lease) })
	}
}

func exportsInTurn(t *testing.T, interval, lease time.Duration) {
	w := newWorld(t)
	inner := mem.New()
	slow := objectfault.New(inner)
	one, _ := w.exporter(slow)
	two, _ := w.exporter(inner)
	one.cfg.Interval, two.cfg.Interval = interval, interval
	reached, goOn := make(chan struct{}), make(chan struct{})
	slow.Script(objectfault.Rule{Op: objectfault.PutIfAbsent, Nth: 1, Do: objectfault.Pass, Hook: func(context.Context, objectfault.Op, string) error {
		close(reached)
		<-goOn
		return nil
	}})
	done := make(chan error)
	go func() { done <- one.Export(t.Context()) }()
	<-reached
	if err := two.Export(t.Context()); !errors.Is(err, errLeased) {
		t.Errorf("beside another: %v", err)
	}
	w.pass(lease - time.Second)
	if err := two.Export(t.Context()); !errors.Is(err, errLeased) {
		t.Errorf("before the lease has run out: %v", err)
	}
	w.pass(2 * time.Second)
	if err := two.Export(t.Context()); err != nil {
		t.Errorf("when the lease has run out: %v", err)
	}
	close(goOn)
	// It notices that the exports are another's, or completes one of its own.
	if err := <-done; err != nil && !errors.Is(err, errExportLost) {
		t.Error(err)
	}
	st, err := two.GetExportState(t.Context(), &indexpb.GetExportStateRequest{})
	if err != nil || st.GetBegun() != 2 || st.GetCompleted() != 2 {
		t.Errorf("%v, %v", st, err)
	}
	complete, _ := held(t.Context(), t, inner)
	if complete[2] == nil {
		t.Error("the second is not there")
	}
}

// I11: begun is no old read, whatever the metastore answers: an export with a higher
// number begins after the call.
func TestExportStateIsNoOldRead(t *testing.T) {
	w := newWorld(t)
	e, _ := w.exporter(mem.New())
	for range 3 {
		if err := e.Export(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s, f := w.process()
	f.Script(fault.Rule{Op: fault.Get, Prefix: "export", Times: 3, Do: fault.Stale, Back: 8})
	st, err := s.GetExportState(t.Context(), &indexpb.GetExportStateRequest{})
	if err != nil || st.GetBegun() != 3 {
		t.Errorf("%v, %v", st, err)
	}
}

// A chain of which more is settled and reclaimed while its directories are read is
// read again.
func TestExportOfAChainThatIsReclaimed(t *testing.T) {
	w := newWorld(t)
	objects := mem.New()
	e, f := w.exporter(objects)
	w.populate(e.Service)
	var row indexpb.Chain
	rows, err := w.rows.Range(t.Context(), partChains, "chain/", "chain/"+after, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(rows[0].Value, &row); err != nil {
		t.Fatal(err)
	}
	id := row.GetChainId()
	f.Script(fault.Rule{Op: fault.Range, Prefix: "directory/", Nth: 1, Do: fault.Pass, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		other, _ := w.process()
		next := proto.CloneOf(&row)
		next.SettledTo, next.ReclaimedTo, next.Attempt = 128, 128, stream.NewAttemptID().String()
		if _, err := other.PutChain(ctx, &indexpb.PutChainRequest{Chain: next, ExpectedVersion: int64(rows[0].Version)}); err != nil {
			return err
		}
		for _, from := range []uint64{0, 64} {
			if _, err := other.DeleteDirectory(ctx, &indexpb.DeleteDirectoryRequest{ChainId: id, From: from}); err != nil {
				return err
			}
		}
		return nil
	}})
	if err := e.Export(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, err := export.ReadManifest(t.Context(), objects, exportID(t, objects))
	if err != nil {
		t.Fatal(err)
	}
	if err := export.Each(t.Context(), objects, m, func(r *indexpb.ExportRecord) error {
		if c := r.GetChain(); c != nil && c.GetSettledTo() != 128 {
			t.Errorf("the chain is settled to %d, and its directories are gone", c.GetSettledTo())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func exportID(t *testing.T, objects objectstore.Store) string {
	t.Helper()
	infos, err := objects.List(t.Context(), export.Prefix, "", 1)
	if err != nil || len(infos) == 0 {
		t.Fatal("no export", err)
	}
	id, _, _ := export.ParseKey(infos[0].Key)
	return id
}

// Exports come by themselves, each interval; who turns them off says so.
func TestExportsRun(t *testing.T) {
	w := newWorld(t)
	objects := mem.New()
	s, _ := w.process()
	e, err := NewExporting(s, ExportConfig{Interval: time.Second}, objects)
	if err != nil {
		t.Fatal(err)
	}
	run := func(e *Exporting, until func(*indexpb.GetExportStateResponse) bool) {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		deadline := time.Now().Add(30 * time.Second)
		for {
			st, err := e.GetExportState(t.Context(), &indexpb.GetExportStateRequest{})
			if err == nil && until(st) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v, %v", st, err)
			}
			time.Sleep(10 * time.Millisecond)
			w.pass(50 * time.Millisecond)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	run(e, func(st *indexpb.GetExportStateResponse) bool {
		return st.GetCompleted() >= 3 && st.GetEnabled() && st.GetIntervalMs() == 1000
	})
	off, err := NewExporting(s, ExportConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	run(off, func(st *indexpb.GetExportStateResponse) bool { return !st.GetEnabled() })
}

// Nobody opens a constellation that is being restored, and says what to do.
func TestNobodyOpensWhatIsBeingRestored(t *testing.T) {
	w := newWorld(t)
	rows, err := NewRows(w.rows)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := rows.BeginRestore(t.Context()); !errors.Is(err, ErrInUse) {
		t.Errorf("a constellation that is there: %v", err)
	}
	row, err := w.rows.Get(t.Context(), constellationKey())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.rows.Delete(t.Context(), constellationKey(), row.Version); err != nil {
		t.Fatal(err)
	}
	refused := func(with string) {
		t.Helper()
		s, _ := w.process()
		if _, err := s.OpenConstellation(t.Context(), &indexpb.OpenConstellationRequest{ShardCount: 8}); err == nil || reason.Is(err, reason.RowNotFound) {
			t.Errorf("opened: %v", err)
		}
		if err := CheckRestored(t.Context(), w.rows); err == nil || !strings.Contains(err.Error(), "novad restore") || !strings.Contains(err.Error(), with) {
			t.Errorf("it says %v", err)
		}
	}
	if id, again, err := rows.BeginRestore(t.Context()); err != nil || id != "" || again {
		t.Errorf("%q, %t, %v", id, again, err)
	}
	refused("")
	if err := rows.ChooseExport(t.Context(), "E1"); err != nil {
		t.Fatal(err)
	}
	refused("E1")
	if id, again, err := rows.BeginRestore(t.Context()); err != nil || id != "E1" || !again {
		t.Errorf("%q, %t, %v", id, again, err)
	}
	if err := rows.ChooseExport(t.Context(), "E2"); err == nil {
		t.Error("another export was chosen")
	}
	if err := rows.FinishRestore(t.Context(), &indexpb.Constellation{Id: "c", ShardCount: 4}); err != nil {
		t.Fatal(err)
	}
	s, _ := w.process()
	if c, err := s.OpenConstellation(t.Context(), &indexpb.OpenConstellationRequest{ShardCount: 8}); err != nil || c.GetConstellation().GetShardCount() != 4 {
		t.Errorf("%v, %v", c, err)
	}
	if err := CheckRestored(t.Context(), w.rows); err != nil {
		t.Error(err)
	}
}

// I11: a removal that dies at any call leaves nothing that looks complete, and is
// found by the next.
func TestRemovalOfAnExportDiesAnywhere(t *testing.T) {
	const id, parts = "01J00000000000000000000000", 5
	w := newWorld(t)
	for n := 1; ; n++ {
		inner := mem.New()
		for i := range parts {
			if _, err := inner.PutIfAbsent(t.Context(), export.PartKey(id, i), []byte("part")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := inner.PutIfAbsent(t.Context(), export.ManifestKey(id), []byte("manifest")); err != nil {
			t.Fatal(err)
		}
		f := objectfault.New(inner)
		f.KillAt(n, objectfault.After)
		e, _ := w.exporter(f)
		err := (&exportRun{Exporting: e}).removeExport(t.Context(), id)
		if _, gerr := inner.Get(t.Context(), export.ManifestKey(id)); gerr == nil {
			if _, gerr := inner.Get(t.Context(), export.PartKey(id, parts-1)); gerr != nil {
				t.Errorf("killed at %d: parts are gone before the manifest", n)
			}
		}
		e, _ = w.exporter(inner)
		if err := (&exportRun{Exporting: e}).removeExport(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if left, err := inner.List(t.Context(), "", "", 10); err != nil || len(left) > 0 {
			t.Errorf("killed at %d: %v is left, %v", n, left, err)
		}
		if err == nil {
			if n < parts {
				t.Errorf("%d calls", n)
			}
			return
		}
	}
}
