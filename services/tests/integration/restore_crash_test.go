package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/export"
	"github.com/nova-stream/nova/libs/metastore"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/index"
	"github.com/nova-stream/nova/services/novad"
	"github.com/nova-stream/nova/services/restore"
)

// lost is a constellation whose metastore is lost: its bucket, and what must come
// back.
type lost struct {
	objects objectstore.Store
	sent    []*sent
	made    string // id of a stream that the export does not know
	deleted string // of one that was deleted after it
}

// loseMetastore makes one: with records settled before and after the export and not
// settled, a trim, deletes before and after it, and a stream made after it.
func loseMetastore(t *testing.T) *lost {
	t.Helper()
	s := newStorage()
	start := func(grace time.Duration) (*novad.Node, *client) {
		t.Helper()
		cfg := s.config(t, "--shards", "2", "--settle-age", "50ms")
		cfg.Settler.Interval, cfg.Settler.Probe, cfg.Settler.ReadGrace = 50*time.Millisecond, 50*time.Millisecond, grace
		cfg.Reaper.Interval = 50 * time.Millisecond
		n := startNode(t, cfg)
		awaitReady(t, n)
		return n, dial(t, n.Addr())
	}
	n, c := start(50 * time.Millisecond)
	out := &lost{}
	for i := range 4 {
		p := &sent{stream: fmt.Sprint("s", i)}
		c.create(t, p.stream, nil)
		p.more(t, c, 2)
		out.sent = append(out.sent, p)
	}
	for _, name := range []string{"before", "after"} {
		out.deleted = c.create(t, name, nil)
		c.append(t, 0, name, "x")
	}
	remove := func(name string) {
		t.Helper()
		if _, err := c.streams.DeleteStream(t.Context(), &novapb.DeleteStreamRequest{Bucket: bucket, Stream: name}); err != nil {
			t.Fatal(err)
		}
	}
	remove("before")
	s.settledMore(t, 0)
	eventually(t, readyLimit, func() error {
		found, err := s.objects.List(t.Context(), "chain/", "", 1)
		if err == nil && len(found) == 1 && strings.HasSuffix(found[0].Key, "/0000000000000000") {
			err = errors.New("no slot was reclaimed")
		}
		return err
	})
	stopNode(t, n)
	// Nothing is deleted from here on, as after an export.
	n, c = start(time.Hour)
	had := s.count(t, "settled/")
	out.sent[1].more(t, c, 1)
	s.settledMore(t, had)
	out.sent[0].more(t, c, 1)
	svc, err := index.New(index.Config{}, index.Deps{Store: s.metadata})
	if err != nil {
		t.Fatal(err)
	}
	e, err := index.NewExporting(svc, index.ExportConfig{Interval: time.Hour}, s.objects)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Export(t.Context()); err != nil {
		t.Fatal(err)
	}
	had = s.count(t, "settled/")
	for _, p := range out.sent[:2] {
		p.more(t, c, 2)
	}
	remove("after")
	c.trim(t, "s1", 3)
	out.made = c.create(t, "made", nil)
	c.append(t, 0, "made", "x", "y")
	s.settledMore(t, had)
	out.sent[3].more(t, c, 1)
	stopNode(t, n)
	out.objects = s.objects
	return out
}

func (s storage) count(t *testing.T, prefix string) int {
	t.Helper()
	found, err := s.objects.List(t.Context(), prefix, "", objectstore.MaxListLimit)
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

func (s storage) settledMore(t *testing.T, than int) {
	t.Helper()
	eventually(t, readyLimit, func() error {
		if n := s.count(t, "settled/"); n <= than {
			return fmt.Errorf("%d settled objects", n)
		}
		return nil
	})
}

// copyOf is a bucket with the same objects.
func copyOf(t *testing.T, objects objectstore.Store) objectstore.Store {
	t.Helper()
	out := mem.New()
	for after := ""; ; {
		found, err := objects.List(t.Context(), "", after, objectstore.MaxListLimit)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			return out
		}
		for _, o := range found {
			got, err := objects.Get(t.Context(), o.Key)
			if err == nil {
				_, err = out.PutIfAbsent(t.Context(), o.Key, got.Body)
			}
			if err != nil {
				t.Fatal(err)
			}
			after = o.Key
		}
	}
}

// noted remembers the keys that were ever put.
type noted struct {
	metastore.Store

	mu   sync.Mutex
	keys map[string]metastore.Key
}

func newNoted() *noted { return &noted{Store: metamem.New(), keys: map[string]metastore.Key{}} }

func (w *noted) Put(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	w.mu.Lock()
	w.keys[key.Path] = key
	w.mu.Unlock()
	return w.Store.Put(ctx, key, value, expected)
}

var random = regexp.MustCompile(`(attempt|bucket_id|writer_life|absorbed_at|created_at): ?("[^"]*"|\d+)|-[0-9A-Z]{26}`)

// rows are all rows, without what differs from run to run.
func (w *noted) rows(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for path, key := range w.keys {
		row, err := w.Get(t.Context(), key)
		if errors.Is(err, metastore.ErrNotFound) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		family, _, _ := strings.Cut(path, "/")
		m, known := map[string]proto.Message{
			"constellation": &indexpb.Constellation{}, "chain": &indexpb.Chain{}, "directory": &indexpb.Directory{}, "shard": &indexpb.Shard{},
			"bucket": &indexpb.BucketRecord{}, "name": &indexpb.NameRecord{}, "descriptor": &indexpb.StreamDescriptor{}, "head": &indexpb.Head{},
			"settled": &indexpb.SettledObject{}, "due": &indexpb.Due{}, "export": &indexpb.ExportState{},
		}[family]
		if !known {
			t.Fatalf("a row %s", path)
		}
		if err := proto.Unmarshal(row.Value, m); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if d, ok := m.(*indexpb.Due); ok && d.GetQueue() == "directory" {
			continue // also of objects that a try before left
		}
		text, err := prototext.MarshalOptions{Multiline: false}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		out[path] = strings.Join(strings.Fields(random.ReplaceAllString(string(text), "")), " ")
	}
	return out
}

func difference(got, want map[string]string) error {
	var errs []error
	for _, path := range slices.Sorted(maps.Keys(want)) {
		if got[path] != want[path] {
			errs = append(errs, fmt.Errorf("%s: %q, want %q", path, got[path], want[path]))
		}
	}
	for path := range got {
		if _, ok := want[path]; !ok {
			errs = append(errs, fmt.Errorf("%s: %q, want no row", path, got[path]))
		}
	}
	return errors.Join(errs...)
}

// serve starts a node over what was restored and checks that all is there and goes
// on.
func (l *lost) serve(t *testing.T, objects objectstore.Store, metadata metastore.Store) {
	t.Helper()
	s := storage{objects, metadata}
	cfg := s.config(t, "--settle-age", "50ms")
	cfg.Settler.Interval, cfg.Settler.Probe, cfg.Settler.ReadGrace = 50*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
	cfg.Reaper.Interval = 50 * time.Millisecond
	n := startNode(t, cfg)
	defer stopNode(t, n)
	awaitReady(t, n)
	c := dial(t, n.Addr())
	from := func(p *sent) int {
		if p.stream == "s1" {
			return 3
		}
		return 0
	}
	for _, p := range l.sent {
		c.expect(t, p.stream, uint64(from(p)), p.bodies[from(p):]...)
		for i, want := range p.acks {
			got, err := c.appends.Append(t.Context(), p.request(i))
			if err != nil || !got.GetAck().GetDuplicate() || got.GetAck().GetFirstSeq() != want.GetFirstSeq() {
				t.Fatalf("%s: batch %d sent again: %v, %v", p.stream, i, got, err)
			}
		}
	}
	if got := c.tail(t, "s1").GetFirstSeq(); got != 3 {
		t.Errorf("s1 is trimmed to %d", got)
	}
	got, err := c.reads.Read(t.Context(), &novapb.ReadRequest{Bucket: restore.LostAndFound, Stream: l.made, Start: &novapb.ReadRequest_Seq{}})
	if err != nil || len(got.GetRecords()) != 2 {
		t.Errorf("the stream made after the export: %v, %v", got, err)
	}
	for _, name := range []string{"before", "after"} {
		_, err := c.reads.Read(t.Context(), &novapb.ReadRequest{Bucket: bucket, Stream: name, Start: &novapb.ReadRequest_Seq{}})
		wantErr(t, err, codes.NotFound, reason.StreamNotFound)
	}
	l.settles(t, metadata)
	for _, p := range l.sent {
		c.expect(t, p.stream, uint64(from(p)), p.bodies[from(p):]...)
	}
	c.append(t, uint64(len(l.sent[2].bodies)), "s2", "and on")
	c.mustVerify(t)
}

// settles waits until all chains of before are settled to their ends, and what was
// deleted is removed.
func (l *lost) settles(t *testing.T, metadata metastore.Store) {
	t.Helper()
	svc, err := index.New(index.Config{}, index.Deps{Store: metadata})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, readyLimit, func() error {
		res, err := svc.ListChains(t.Context(), &indexpb.ListChainsRequest{Limit: 100})
		if err != nil {
			return err
		}
		for _, v := range res.GetChains() {
			if c := v.GetChain(); c.GetState() == indexpb.ChainState_CHAIN_STATE_SEALED && c.GetSettledTo() < c.GetCut() {
				return fmt.Errorf("chain %s is settled to %d of %d", c.GetChainId(), c.GetSettledTo(), c.GetCut())
			}
		}
		if _, err := svc.GetHead(t.Context(), &indexpb.GetHeadRequest{StreamId: l.deleted}); !reason.Is(err, reason.RowNotFound) {
			return fmt.Errorf("the head of the deleted stream: %w", err)
		}
		return nil
	})
}

// A restore that dies at any call to either store, before or after it took effect,
// is run again and comes to the same rows (I6); and what came back is whole (I1, I2,
// I5).
func TestRestoreDiesAnywhere(t *testing.T) {
	l := loseMetastore(t)
	reference := newNoted()
	bucketOf := copyOf(t, l.objects)
	counted, metaCounted := fault.New(bucketOf), metafault.New(reference)
	report, err := restore.Run(t.Context(), restore.Deps{Objects: counted, Metastore: metaCounted})
	if err != nil {
		t.Fatal(err)
	}
	if report.Found != 1 || report.Deleted != 1 || report.Damage != 0 || report.Streams < 5 || report.Settled == 0 {
		t.Errorf("%+v", report)
	}
	want := reference.rows(t)
	l.serve(t, bucketOf, reference)
	if _, err := restore.Run(t.Context(), restore.Deps{Objects: bucketOf, Metastore: reference}); !errors.Is(err, restore.ErrInUse) {
		t.Errorf("over a constellation: %v", err)
	}
	objectCalls, metaCalls := 0, 0
	for _, c := range counted.Counts() {
		objectCalls += c.Calls
	}
	for _, c := range metaCounted.Counts() {
		metaCalls += c.Calls
	}
	t.Log(objectCalls, "calls to the object store,", metaCalls, "to the metastore")
	for _, meta := range []bool{false, true} {
		for _, after := range []bool{false, true} {
			step := 1
			if testing.Short() {
				step = 11
			}
			calls := objectCalls
			if meta {
				calls = metaCalls
			}
			for n := 1; n <= calls; n += step {
				name := fmt.Sprintf("metastore %t, after %t, call %d", meta, after, n)
				objects, rows := copyOf(t, l.objects), newNoted()
				of, mf := fault.New(objects), metafault.New(rows)
				killed := of.Killed()
				switch {
				case meta && after:
					mf.KillAt(n, metafault.After)
				case meta:
					mf.KillAt(n, metafault.Before)
				case after:
					of.KillAt(n, fault.After)
				default:
					of.KillAt(n, fault.Before)
				}
				if meta {
					killed = mf.Killed()
				}
				ctx, cancel := context.WithCancel(t.Context())
				watch := make(chan struct{})
				go func() {
					defer close(watch)
					select {
					case <-killed:
						cancel()
					case <-ctx.Done():
					}
				}()
				_, _ = restore.Run(ctx, restore.Deps{Objects: of, Metastore: mf})
				cancel()
				<-watch
				_, err := restore.Run(t.Context(), restore.Deps{Objects: objects, Metastore: rows})
				if err != nil && !errors.Is(err, restore.ErrInUse) {
					t.Fatalf("%s: again: %v", name, err)
				}
				if err := difference(rows.rows(t), want); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if n%97 == 1 && !testing.Short() {
					l.serve(t, objects, rows)
				}
			}
		}
	}
}

// The newest export that is whole is the one that is restored; none is an error, and
// so is a bucket of two constellations.
func TestRestoreChoosesAnExport(t *testing.T) {
	l := loseMetastore(t)
	ids := func(objects objectstore.Store) []string {
		found, err := objects.List(t.Context(), export.Prefix, "", objectstore.MaxListLimit)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Compact(slices.Collect(func(yield func(string) bool) {
			for _, o := range found {
				id, _, _ := export.ParseKey(o.Key)
				if !yield(id) {
					return
				}
			}
		}))
	}
	id := ids(l.objects)[0]
	newer := func(objects objectstore.Store, change func(*indexpb.ExportManifest)) {
		m, err := export.ReadManifest(t.Context(), objects, id)
		if err != nil {
			t.Fatal(err)
		}
		m.ExportId, m.Number = "01J00000000000000000000000", m.GetNumber()+5
		change(m)
		b, err := export.EncodeManifest(m)
		if err == nil {
			_, err = objects.PutIfAbsent(t.Context(), export.ManifestKey(m.GetExportId()), b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		change func(objects objectstore.Store)
		fails  string
		damage int
	}{
		{"a newer one lacks a part", func(o objectstore.Store) { newer(o, func(*indexpb.ExportManifest) {}) }, "", 1},
		{"another constellation", func(o objectstore.Store) {
			newer(o, func(m *indexpb.ExportManifest) { m.ConstellationId = "01J0000000000000000000000D" })
		}, "two constellations", 0},
		{"a manifest that is damaged", func(o objectstore.Store) {
			if _, err := o.PutIfAbsent(t.Context(), export.ManifestKey("01J00000000000000000000000"), []byte("noise")); err != nil {
				t.Fatal(err)
			}
		}, "", 1},
		{"no manifest", func(o objectstore.Store) {
			if err := o.Delete(t.Context(), export.ManifestKey(id)); err != nil {
				t.Fatal(err)
			}
		}, restore.ErrNoExport.Error(), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects, rows := copyOf(t, l.objects), newNoted()
			c.change(objects)
			report, err := restore.Run(t.Context(), restore.Deps{Objects: objects, Metastore: rows})
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("%v", err)
				}
				// It is not left as if it were new.
				if index.CheckRestored(t.Context(), rows) == nil {
					t.Error("programs would start over it")
				}
				return
			}
			if err != nil || report.Export != id || report.Damage != c.damage {
				t.Fatalf("%+v, %v", report, err)
			}
			l.serve(t, objects, rows)
		})
	}
}
