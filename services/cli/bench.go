package cli

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// benchFlags are what the loads share.
type benchFlags struct {
	time     duration
	sessions int
	batch    int
	size     int
	window   int
	keep     bool
}

func (a *app) benchCommand() *cobra.Command {
	return group("bench", "put a load on the service and measure it",
		a.benchLoad("append [BUCKET]", "appends from several sessions, each to a stream of its own", `Latency is that of a batch: from when it is handed over to its
acknowledgement, so with --window above 1 it holds the time in line.`, (*bench).append),
		a.benchLoad("e2e [BUCKET]", "appends, with a subscriber to every stream", `Latency is that of a batch: from when it is handed over to its arrival at the
subscriber. The acknowledgement's is shown beside it.`, (*bench).endToEnd),
		a.benchReadCommand())
}

func (a *app) benchLoad(use, short, latency string, run func(*bench, context.Context) error) *cobra.Command {
	o := benchFlags{time: duration(10 * time.Second)}
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.MaximumNArgs(1),
		Long: short + `.

` + latency + `

The streams are made in the bucket, "bench" if none is named, which is made too
if it is not there. They are deleted at the end. Bodies are random bytes, which
do not compress. An interrupt ends the load early, and what was measured is
shown.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.bench(cmd, o, append(args, "bench")[0], run)
		},
	}
	f := cmd.Flags()
	f.Var(&o.time, "time", "how long the load lasts")
	f.IntVar(&o.sessions, "sessions", 1, "sessions, each with a stream, 1..1000")
	f.IntVar(&o.batch, "batch", 100, "records in one batch, 1..1000")
	f.IntVar(&o.size, "size", 1024, "bytes of a record's body")
	f.IntVar(&o.window, "window", 1, "batches of a session under way at once, 1..16")
	f.BoolVar(&o.keep, "keep", false, "do not delete the streams")
	return cmd
}

func (o *benchFlags) check() error {
	for _, c := range []struct {
		flag               string
		value, least, most int
	}{
		{"--sessions", o.sessions, 1, 1000},
		{"--batch", o.batch, 1, stream.MaxBatchRecords},
		{"--size", o.size, 0, stream.MaxRecordBytes},
		{"--window", o.window, 1, 16},
	} {
		if c.value < c.least || c.value > c.most {
			return usagef("%s must be %d..%d, is %d", c.flag, c.least, c.most, c.value)
		}
	}
	if o.batch*o.size > stream.MaxBatchBytes {
		return usagef("--batch times --size is %d bytes, the limit of a batch is %d", o.batch*o.size, stream.MaxBatchBytes)
	}
	if o.time <= 0 {
		return usagef("--time must be above 0")
	}
	return nil
}

// bench is a load under way.
type bench struct {
	benchFlags
	client  *client.Client
	bucket  string
	names   []string
	records []*novapb.AppendRecord
	meter   *meter
}

func (a *app) bench(cmd *cobra.Command, o benchFlags, bucket string, run func(*bench, context.Context) error) error {
	if err := o.check(); err != nil {
		return err
	}
	c, done, err := a.connect()
	if err != nil {
		return err
	}
	defer done()
	b := &bench{benchFlags: o, client: c, bucket: bucket, meter: &meter{}}
	id := stream.NewID().String()
	for i := range o.sessions {
		b.names = append(b.names, fmt.Sprintf("bench-%s-%d", id, i))
	}
	body := make([]byte, o.batch*o.size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(body)
	for i := range o.batch {
		b.records = append(b.records, &novapb.AppendRecord{Body: body[i*o.size : (i+1)*o.size]})
	}
	defer b.remove(cmd.Context())
	for _, name := range b.names {
		if err := a.create(cmd.Context(), c, bucket, name, callTimeout); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Duration(o.time))
	defer cancel()
	stop := a.showLoad(b.meter)
	err = run(b, ctx)
	stop()
	if err != nil {
		return err
	}
	return a.show(b.meter.result(), b.meter.print)
}

// remove deletes the streams, also after an interrupt.
func (b *bench) remove(ctx context.Context) {
	if b.keep {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	for _, name := range b.names {
		// What stays is named bench-...; a failure to remove it is not one of the load.
		_, _ = b.client.Streams.DeleteStream(ctx, &novapb.DeleteStreamRequest{Bucket: b.bucket, Stream: name})
	}
}
