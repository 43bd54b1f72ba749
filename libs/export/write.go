package export

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Objects is what writing needs of an object store.
type Objects interface {
	PutIfAbsent(ctx context.Context, key string, body []byte) (objectstore.ETag, error)
}

// Writer writes one export. It holds one part in memory. It is not safe for
// concurrent use. One that is not finished leaves an incomplete export.
type Writer struct {
	objects  Objects
	manifest *indexpb.ExportManifest
	raw      []byte
	records  uint64
	err      error // of the part that failed: nothing more is written
}

// NewWriter starts an export. about is its manifest without parts and counts; its
// export_id MUST be fresh, since what is found under its keys is taken for the
// writer's own.
func NewWriter(objects Objects, about *indexpb.ExportManifest) *Writer {
	return &Writer{objects: objects, manifest: proto.CloneOf(about)}
}

// Add adds a record; now and then it writes a part.
func (w *Writer) Add(ctx context.Context, r *indexpb.ExportRecord) error {
	if w.err != nil {
		return w.err
	}
	n := proto.Size(r)
	if n > MaxRecordBytes {
		return fmt.Errorf("export: a record of %d bytes, the limit is %d", n, MaxRecordBytes)
	}
	if len(w.raw)+protowire.SizeBytes(n) > MaxRawBytes {
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	raw := protowire.AppendVarint(w.raw, uint64(n))
	raw, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(raw, r)
	if err != nil {
		return fmt.Errorf("export: encode a record: %w", err)
	}
	w.raw = raw
	w.records++
	if c := counter(w.manifest, r); c != nil {
		*c++
	}
	return nil
}

// counter is what counts records of a kind; nil: none does.
func counter(m *indexpb.ExportManifest, r *indexpb.ExportRecord) *uint64 {
	switch r.GetRow().(type) {
	case *indexpb.ExportRecord_Bucket:
		return &m.Buckets
	case *indexpb.ExportRecord_Name:
		return &m.Names
	case *indexpb.ExportRecord_Descriptor_:
		return &m.Descriptors
	case *indexpb.ExportRecord_Head:
		return &m.Heads
	case *indexpb.ExportRecord_Chain:
		return &m.Chains
	case *indexpb.ExportRecord_Directory:
		return &m.Directories
	case *indexpb.ExportRecord_Shard:
		return &m.Shards
	case *indexpb.ExportRecord_Due:
		return &m.Dues
	}
	return nil
}

// Finish writes what is left and then the manifest, which completes the export, and
// returns it.
func (w *Writer) Finish(ctx context.Context, at time.Time) (*indexpb.ExportManifest, error) {
	if err := w.flush(ctx); err != nil {
		return nil, err
	}
	w.manifest.CompletedAt = at.UnixMilli()
	b, err := EncodeManifest(w.manifest)
	if err != nil {
		return nil, err
	}
	if err := w.put(ctx, ManifestKey(w.manifest.GetExportId()), b); err != nil {
		return nil, err
	}
	return w.manifest, nil
}

func (w *Writer) flush(ctx context.Context) error {
	if w.err != nil || w.records == 0 {
		return w.err
	}
	n := len(w.manifest.GetParts())
	if n == MaxParts {
		return fmt.Errorf("export: more than %d parts", MaxParts)
	}
	body, part := encodePart(w.raw, w.records)
	if w.err = w.put(ctx, PartKey(w.manifest.GetExportId(), n), body); w.err != nil {
		return w.err
	}
	w.manifest.Parts = append(w.manifest.Parts, part)
	w.raw, w.records = w.raw[:0], 0
	return nil
}

const (
	// putPatience is how long one object is put again while the store does not
	// answer, and putTimeout how long one call waits.
	putPatience = 2 * time.Minute
	putTimeout  = 30 * time.Second
)

// put puts an object. The key is this export's own: what is there is this body.
func (w *Writer) put(ctx context.Context, key string, body []byte) error {
	deadline := time.Now().Add(putPatience)
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		call, cancel := context.WithTimeout(ctx, putTimeout)
		_, err := w.objects.PutIfAbsent(call, key, body)
		cancel()
		if err == nil || errors.Is(err, objectstore.ErrExists) {
			return nil
		}
		if !objectstore.Unknown(err) || ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("export: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}
