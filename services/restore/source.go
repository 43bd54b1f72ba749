package restore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nova-stream/nova/libs/export"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// listing is what the bucket holds.
type listing struct {
	slots       map[string][]slots         // by chain, ascending, not adjacent
	directories map[string]map[string]bool // by chain: keys of objects
	objects     map[string]int64           // of runs and pages: bytes
	exports     []*indexpb.ExportEntry     // number 0 until the manifest was read
	manifests   []string                   // ids of exports that have one
}

// slots are slots [from, to) of a chain.
type slots struct{ from, to uint64 }

// list is stepList.
func (r *restore) list(ctx context.Context) error {
	b := &listing{slots: map[string][]slots{}, directories: map[string]map[string]bool{}, objects: map[string]int64{}}
	r.bucket = b
	seen := map[string]bool{}
	for _, part := range []struct {
		prefix string
		add    func(o objectstore.Info)
	}{
		{"chain/", func(o objectstore.Info) {
			id, n, ok := slotOf(o.Key)
			if !ok {
				return
			}
			of := b.slots[id]
			if k := len(of); k > 0 && of[k-1].to == n {
				of[k-1].to = n + 1
			} else {
				of = append(of, slots{n, n + 1})
			}
			b.slots[id] = of
		}},
		{"directory/", func(o objectstore.Info) {
			id, _, ok := strings.Cut(strings.TrimPrefix(o.Key, "directory/"), "/")
			if !ok {
				return
			}
			if b.directories[id] == nil {
				b.directories[id] = map[string]bool{}
			}
			b.directories[id][o.Key] = true
		}},
		{"settled/", func(o objectstore.Info) { b.objects[o.Key] = o.Size }},
		{"page/", func(o objectstore.Info) { b.objects[o.Key] = o.Size }},
		{export.Prefix, func(o objectstore.Info) {
			id, n, ok := export.ParseKey(o.Key)
			if !ok {
				return
			}
			if !seen[id] {
				seen[id] = true
				b.exports = append(b.exports, &indexpb.ExportEntry{ExportId: id})
			}
			if n < 0 {
				b.manifests = append(b.manifests, id)
			}
		}},
	} {
		if err := r.each(ctx, part.prefix, part.add); err != nil {
			return err
		}
	}
	return nil
}

func (r *restore) each(ctx context.Context, prefix string, f func(objectstore.Info)) error {
	after := ""
	for {
		var found []objectstore.Info
		err := r.again(ctx, func() (err error) {
			found, err = r.objects.List(ctx, prefix, after, objectstore.MaxListLimit)
			return err
		})
		if err != nil {
			return fmt.Errorf("list %s: %w", prefix, err)
		}
		for _, o := range found {
			f(o)
			after = o.Key
		}
		if len(found) < objectstore.MaxListLimit {
			return nil
		}
	}
}

func slotOf(key string) (id string, n uint64, ok bool) {
	id, name, ok := strings.Cut(strings.TrimPrefix(key, "chain/"), "/")
	if !ok || len(name) != 16 {
		return "", 0, false
	}
	if _, err := stream.ParseChainID(id); err != nil {
		return "", 0, false
	}
	n, err := strconv.ParseUint(name, 16, 64)
	return id, n, err == nil
}

// holds reports whether all slots of a range are there.
func (b *listing) holds(chain string, from, to uint64) bool {
	return from >= to || slices.ContainsFunc(b.slots[chain], func(s slots) bool { return s.from <= from && to <= s.to })
}

// again repeats a call to the object store while it does not answer.
func (r *restore) again(ctx context.Context, call func() error) error {
	const tries = 6
	for n := 0; ; n++ {
		err := call()
		if !errors.Is(err, objectstore.ErrUnavailable) && !errors.Is(err, objectstore.ErrThrottled) || n == tries-1 {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond << n):
		}
	}
}

// get is Get, again while the store does not answer.
func (r *restore) get(ctx context.Context, key string) (o objectstore.Object, err error) {
	err = r.again(ctx, func() error {
		o, err = r.objects.Get(ctx, key)
		return err
	})
	return o, err
}

// getter makes get what reading an export needs.
type getter struct{ *restore }

func (g getter) Get(ctx context.Context, key string) (objectstore.Object, error) {
	return g.get(ctx, key)
}

// source is the export that is restored: what of it fits into memory. Heads, names
// and descriptors are read again when they are written.
type source struct {
	manifest      *indexpb.ExportManifest
	constellation *indexpb.Constellation
	chains        map[string]*indexpb.Chain
	directories   map[string][]*indexpb.Directory // by chain, by slot
	shards        map[uint32]*indexpb.Shard
	streams       map[stream.ID]known
	again         map[string]int        // by stream: how many heads come before its last
	lost          *indexpb.BucketRecord // the bucket LostAndFound, if it has one
}

// known is what is kept of a head.
type known struct {
	folded  stream.Position
	opened  uint64 // epoch
	shard   uint32
	deleted bool
}

// choose is stepChoose. A restore that was stopped goes on with its export.
func (r *restore) choose(ctx context.Context) error {
	var complete []*indexpb.ExportManifest
	for _, id := range r.bucket.manifests {
		m, err := export.ReadManifest(ctx, getter{r}, id)
		switch {
		case errors.Is(err, export.ErrCorrupt), errors.Is(err, objectstore.ErrNotFound):
			r.damaged(ctx, "the manifest of an export cannot be read", "export", id, "err", err)
			r.report.Skipped++
			continue
		case err != nil:
			return err
		}
		complete = append(complete, m)
		for _, e := range r.bucket.exports {
			if e.GetExportId() == id {
				e.Number, e.Complete = m.GetNumber(), true
			}
		}
	}
	slices.SortFunc(complete, func(a, b *indexpb.ExportManifest) int {
		if a.GetNumber() != b.GetNumber() {
			return int(int64(b.GetNumber()) - int64(a.GetNumber()))
		}
		return int(b.GetBegunAt() - a.GetBegunAt())
	})
	for _, m := range complete {
		if m.GetConstellationId() != complete[0].GetConstellationId() {
			return fmt.Errorf("the bucket holds exports of two constellations, %s and %s", m.GetConstellationId(), complete[0].GetConstellationId())
		}
	}
	for _, m := range complete {
		if r.before != "" && m.GetExportId() != r.before {
			continue
		}
		s, err := r.load(ctx, m)
		if errors.Is(err, export.ErrCorrupt) {
			r.damaged(ctx, "an export is damaged; an older one is tried, which may lack what was deleted since", "export", m.GetExportId(), "number", m.GetNumber(), "err", err)
			r.report.Skipped++
			continue
		}
		if err != nil {
			return err
		}
		r.source, r.at = s, m.GetCompletedAt()
		r.report.Export, r.report.Number, r.report.BegunAt = m.GetExportId(), m.GetNumber(), time.UnixMilli(m.GetBegunAt())
		r.report.Streams = len(s.streams)
		r.log.InfoContext(ctx, "restore from export", "export", m.GetExportId(), "number", m.GetNumber(), "begun", r.report.BegunAt, "streams", len(s.streams))
		return r.rows.ChooseExport(ctx, m.GetExportId())
	}
	if r.before != "" {
		return fmt.Errorf("export %s, which the restore before worked from, cannot be read any more: empty the metastore and begin again", r.before)
	}
	return ErrNoExport
}

// load verifies an export and keeps what is needed of it.
func (r *restore) load(ctx context.Context, m *indexpb.ExportManifest) (*source, error) {
	s := &source{
		manifest: m, chains: map[string]*indexpb.Chain{}, directories: map[string][]*indexpb.Directory{},
		shards: map[uint32]*indexpb.Shard{}, streams: make(map[stream.ID]known, m.GetHeads()), again: map[string]int{},
	}
	err := export.Each(ctx, getter{r}, m, func(row *indexpb.ExportRecord) error {
		switch row := row.GetRow().(type) {
		case *indexpb.ExportRecord_Constellation:
			s.constellation = row.Constellation
		case *indexpb.ExportRecord_Chain:
			s.chains[row.Chain.GetChainId()] = row.Chain
		case *indexpb.ExportRecord_Directory:
			id := row.Directory.GetChainId()
			s.directories[id] = append(s.directories[id], row.Directory)
		case *indexpb.ExportRecord_Shard:
			s.shards[row.Shard.GetShard()] = row.Shard
		case *indexpb.ExportRecord_Bucket:
			if row.Bucket.GetName() == LostAndFound {
				s.lost = row.Bucket
			}
		case *indexpb.ExportRecord_Head:
			h := row.Head
			id, err := stream.ParseID(h.GetStreamId())
			if err != nil {
				return fmt.Errorf("%w: a head of no stream: %w", export.ErrCorrupt, err)
			}
			if _, had := s.streams[id]; had {
				s.again[h.GetStreamId()]++
			}
			s.streams[id] = known{
				folded: stream.Position{Epoch: stream.Epoch(h.GetFoldedEpoch()), Entry: stream.EntryNo(h.GetFoldedEntry())},
				opened: h.GetOpenedEpoch(), shard: h.GetShard(),
				deleted: h.GetState() == indexpb.HeadState_HEAD_STATE_DELETED,
			}
		}
		return nil
	})
	if err == nil && (s.constellation.GetShardCount() == 0 || s.constellation.GetId() != m.GetConstellationId()) {
		err = fmt.Errorf("%w: export %s does not hold the constellation of its manifest", export.ErrCorrupt, m.GetExportId())
	}
	return s, err
}
