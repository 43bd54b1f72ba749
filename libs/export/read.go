package export

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Source is what reading needs of an object store.
type Source interface {
	Get(ctx context.Context, key string) (objectstore.Object, error)
}

// ReadManifest reads the manifest of an export. objectstore.ErrNotFound: it is
// incomplete.
func ReadManifest(ctx context.Context, objects Source, id string) (*indexpb.ExportManifest, error) {
	o, err := objects.Get(ctx, ManifestKey(id))
	if err != nil {
		return nil, fmt.Errorf("manifest of export %s: %w", id, err)
	}
	m, err := DecodeManifest(o.Body, id)
	if err != nil {
		return nil, fmt.Errorf("manifest of export %s: %w", id, err)
	}
	return m, nil
}

// Each calls f with every record of an export, in the order in which they were
// written, and holds one part in memory. It verifies every checksum, and in the end
// the counts of the manifest.
//
// A part that is missing is ErrCorrupt.
func Each(ctx context.Context, objects Source, m *indexpb.ExportManifest, f func(*indexpb.ExportRecord) error) error {
	found := &indexpb.ExportManifest{}
	for i, part := range m.GetParts() {
		key := PartKey(m.GetExportId(), i)
		o, err := objects.Get(ctx, key)
		if objectstore.Class(err) == "not_found" {
			return fmt.Errorf("%w: %s is not there", ErrCorrupt, key)
		}
		if err != nil {
			return fmt.Errorf("export %s: %w", m.GetExportId(), err)
		}
		err = DecodePart(o.Body, part, func(r *indexpb.ExportRecord) error {
			if c := counter(found, r); c != nil {
				*c++
			}
			return f(r)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	counts := proto.CloneOf(m)
	counts.ExportId, counts.Number, counts.ConstellationId, counts.Incarnation = "", 0, "", 0
	counts.BegunAt, counts.CompletedAt, counts.Parts = 0, 0, nil
	if !proto.Equal(counts, found) {
		return fmt.Errorf("%w: it holds %v, its manifest says %v", ErrCorrupt, found, counts)
	}
	return nil
}
