package retention

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/export"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

func TestMain(m *testing.M) {
	if err := warm(); err != nil {
		fmt.Fprintln(os.Stderr, "warm:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// warm has the encoders and decoders made that all of a process shares: they hold
// channels, and what is made in one bubble cannot be used in another.
func warm() error {
	b, _, err := chunk.Encode(nil, chunk.Input{StreamID: stream.NewID(), Batches: []chunk.InputBatch{{Records: []stream.Record{{Body: make([]byte, 8<<10)}}}}})
	if err != nil {
		return err
	}
	if _, _, err := chunk.Decode(b); err != nil {
		return err
	}
	objects, ctx := mem.New(), context.Background()
	w := export.NewWriter(objects, &indexpb.ExportManifest{ExportId: stream.NewID().String()})
	if err := w.Add(ctx, &indexpb.ExportRecord{Row: &indexpb.ExportRecord_Due{Due: &indexpb.Due{Queue: "q"}}}); err != nil {
		return err
	}
	x, err := w.Finish(ctx, time.Now())
	if err != nil {
		return err
	}
	return export.Each(ctx, objects, x, func(*indexpb.ExportRecord) error { return nil })
}
