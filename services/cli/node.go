package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func (a *app) nodeCommand() *cobra.Command {
	stats := &cobra.Command{
		Use: "stats NODE", Short: "show a node's figures",
		Long: `stats shows the figures of a node's process: what its /metrics page has, one
number per name. Counters and gauges are summed over their labels; a histogram
has a count and a sum. NODE is an id as fleet shows it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				res, err := c.Admin.GetNodeStats(ctx, &novapb.GetNodeStatsRequest{NodeId: args[0]})
				if err != nil {
					return err
				}
				return a.show(res.GetStats(), func(w io.Writer) { statsText(w, res.GetStats()) })
			})
		},
	}
	undrain := &cobra.Command{
		Use: "undrain NODE", Short: "let a node take work again",
		Long: "undrain ends what drain began. Work does not come back at once: the node is\nagain one of those that it is given to. NODE is an id as fleet shows it.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				if _, err := c.Admin.UndrainNode(ctx, &novapb.UndrainNodeRequest{NodeId: args[0]}); err != nil {
					return err
				}
				return a.show(map[string]any{"node": args[0], "draining": false}, func(w io.Writer) { fmt.Fprintln(w, args[0], "takes work again") })
			})
		},
	}
	return group("node", "show and steer a node", stats, a.drainCommand(), undrain)
}

func statsText(w io.Writer, stats map[string]float64) {
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(stats)) {
		rows = append(rows, []string{name, strconv.FormatFloat(stats[name], 'f', -1, 64)})
	}
	table(w, rows...)
}
