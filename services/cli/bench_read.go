package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// benchReadCommand reads what is there.
func (a *app) benchReadCommand() *cobra.Command {
	var readers int
	cmd := &cobra.Command{
		Use: "read BUCKET/STREAM", Short: "read a whole stream, by several readers side by side", Args: cobra.ExactArgs(1),
		Long: `read reads a stream from its first retained record to the tail as of the
start. Latency is that of a page.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			bucket, name, err := streamName(args[0])
			if err != nil {
				return err
			}
			if readers < 1 || readers > 1000 {
				return usagef("--readers must be 1..1000, is %d", readers)
			}
			c, done, err := a.connect()
			if err != nil {
				return err
			}
			defer done()
			m := &meter{}
			stop := a.showLoad(m)
			err = each(readers, func(int) error { return readAll(cmd.Context(), c, bucket, name, m) })
			stop()
			if err != nil {
				return err
			}
			return a.show(m.result(), m.print)
		},
	}
	cmd.Flags().IntVar(&readers, "readers", 1, "readers of the whole stream, 1..1000")
	return cmd
}

func readAll(ctx context.Context, c *client.Client, bucket, name string, m *meter) error {
	asked := time.Now()
	req := &novapb.ReadRequest{Bucket: bucket, Stream: name}
	return c.Read(ctx, client.ReadConfig{Request: req}, func(page *novapb.ReadResponse) error {
		size := 0
		for _, r := range page.GetRecords() {
			size += len(r.GetBody())
		}
		m.count(len(page.GetRecords()), size)
		m.observe("page", time.Since(asked))
		asked = time.Now()
		return nil
	})
}
