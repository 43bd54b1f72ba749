package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func (a *app) verifyCommand() *cobra.Command {
	var all, repair bool
	cmd := &cobra.Command{
		Use:   "verify BUCKET/STREAM | verify BUCKET | verify --all",
		Short: "check numbers, checksums and content hashes against storage, with --all also for what leaks; exit 1 on any finding",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &novapb.VerifyRequest{All: all, Repair: repair}
			switch {
			case len(args) == 1 && all, len(args) == 0 && !all:
				return usagef("verify needs a stream, a bucket, or --all")
			case len(args) == 1:
				slash := false
				if req.Bucket, req.Stream, slash = strings.Cut(args[0], "/"); req.Bucket == "" || slash && req.Stream == "" {
					return usagef("verify needs BUCKET/STREAM or BUCKET, got %q", args[0])
				}
			}
			return a.verify(cmd.Context(), req)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every stream of every bucket, and that metadata and objects belong to each other")
	cmd.Flags().BoolVar(&repair, "repair", false, "put right what can be put right without guessing, and say what the rest needs; exit 1 if any is left")
	return cmd
}

func (a *app) verify(ctx context.Context, req *novapb.VerifyRequest) error {
	c, done, err := a.connect()
	if err != nil {
		return err
	}
	defer done()
	call, err := c.Admin.Verify(ctx, req)
	if err != nil {
		return err
	}
	var sum verified
	for {
		m, err := call.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := a.showVerified(m); err != nil {
			return err
		}
		sum.add(m)
	}
	if req.GetStream() == "" {
		if err := a.show(sum.view(), sum.print); err != nil {
			return err
		}
	}
	if sum.findings > sum.repaired {
		return errSilent
	}
	return nil
}

// showVerified shows what a report finds, and a line when it is the last one of a
// stream.
func (a *app) showVerified(m *novapb.VerifyResponse) error {
	name := "constellation"
	if m.GetBucket() != "" {
		name = m.GetBucket() + "/" + m.GetStream()
	}
	for _, f := range m.GetFindings() {
		v := view(f)
		v["stream"] = name
		if err := a.show(v, func(w io.Writer) { fmt.Fprintf(w, "%s: %s: %s%s\n", name, f.GetKind(), f.GetMessage(), repairOf(f)) }); err != nil {
			return err
		}
	}
	switch {
	case !m.GetDone():
		return nil
	case m.GetBucket() == "":
		return a.show(map[string]any{"constellation": true, "chains": m.GetChains(), "objects": m.GetObjects(), "done": true}, func(w io.Writer) {
			fmt.Fprintf(w, "%s: %d chains, %d objects checked\n", name, m.GetChains(), m.GetObjects())
		})
	}
	return a.show(map[string]any{
		"stream": name, "stream_id": m.GetStreamId(), "records": m.GetRecords(), "settled_records": m.GetSettledRecords(), "bytes": m.GetBytes(), "done": true,
	}, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %d records, %d bytes checked\n", name, m.GetRecords(), m.GetBytes())
	})
}

// verified sums up what was verified.
type verified struct {
	streams, records, settled, bytes, chains, objects, findings, repaired uint64
}

// repairOf says what a repair did about a finding; empty without one.
func repairOf(f *novapb.VerifyFinding) string {
	switch {
	case f.GetRepaired():
		return "\n  repaired: " + f.GetRepair()
	case f.GetRepair() != "":
		return "\n  not repaired: " + f.GetRepair()
	}
	return ""
}

func (s *verified) add(m *novapb.VerifyResponse) {
	s.findings += uint64(len(m.GetFindings()))
	for _, f := range m.GetFindings() {
		if f.GetRepaired() {
			s.repaired++
		}
	}
	switch {
	case !m.GetDone():
	case m.GetBucket() == "":
		s.chains, s.objects = m.GetChains(), m.GetObjects()
	default:
		s.streams++
		s.records += m.GetRecords()
		s.settled += m.GetSettledRecords()
		s.bytes += m.GetBytes()
	}
}

func (s *verified) view() map[string]any {
	return map[string]any{
		"streams": s.streams, "records": s.records, "settled_records": s.settled, "bytes": s.bytes, "chains": s.chains, "objects": s.objects,
		"findings": s.findings, "repaired": s.repaired, "summary": true,
	}
}

func (s *verified) print(w io.Writer) {
	fmt.Fprintf(w, "%d streams, %d records (%d settled), %d bytes, %d chains, %d objects checked: %d findings",
		s.streams, s.records, s.settled, s.bytes, s.chains, s.objects, s.findings)
	if s.repaired > 0 {
		fmt.Fprintf(w, ", %d of them repaired", s.repaired)
	}
	fmt.Fprintln(w)
}

func (a *app) fleetCommand() *cobra.Command {
	return &cobra.Command{Use: "fleet", Short: "show the nodes", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			res, err := c.Admin.GetFleet(ctx, &novapb.GetFleetRequest{})
			if err != nil {
				return err
			}
			return a.show(view(res), func(w io.Writer) {
				fmt.Fprintf(w, "constellation %s, %d shards\n", res.GetConstellationId(), res.GetShardCount())
				rows := [][]string{{"SERVICE", "NODE", "ADDRESS", "ZONE", "DRAINING"}}
				for _, n := range res.GetNodes() {
					rows = append(rows, []string{n.GetService(), n.GetNodeId(), n.GetAddress(), dash(n.GetZone()), fmt.Sprint(n.GetDraining())})
				}
				table(w, rows...)
			})
		})
	}}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (a *app) shardCommand() *cobra.Command {
	return group("shard", "show shards", &cobra.Command{Use: "list", Short: "list the shards and who leads them", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			rows := [][]string{{"SHARD", "EPOCH", "STATE", "LEADER", "CHAINS"}}
			err := eachShard(ctx, c, func(s *novapb.ShardInfo) error {
				if a.output == "json" {
					return a.show(view(s), nil)
				}
				rows = append(rows, []string{fmt.Sprint(s.GetShard()), fmt.Sprint(s.GetEpoch()), s.GetState(), s.GetLeader(), fmt.Sprint(len(s.GetChainIds()))})
				return nil
			})
			if err != nil {
				return err
			}
			if a.output != "json" {
				table(a.Out, rows...)
			}
			return nil
		})
	}})
}

// eachShard calls f for every shard record, by number.
func eachShard(ctx context.Context, c *client.Client, f func(*novapb.ShardInfo) error) error {
	for start := uint32(0); ; {
		res, err := c.Admin.ListShards(ctx, &novapb.ListShardsRequest{Start: start})
		if err != nil {
			return err
		}
		for _, s := range res.GetShards() {
			start = s.GetShard() + 1
			if err := f(s); err != nil {
				return err
			}
		}
		if !res.GetHasMore() || len(res.GetShards()) == 0 {
			return nil
		}
	}
}

// eachChain calls f with every chain, oldest first.
func eachChain(ctx context.Context, c *client.Client, f func(*novapb.ChainInfo) error) error {
	for after := ""; ; {
		res, err := c.Admin.ListChains(ctx, &novapb.ListChainsRequest{StartAfter: after})
		if err != nil {
			return err
		}
		for _, ch := range res.GetChains() {
			after = ch.GetChainId()
			if err := f(ch); err != nil {
				return err
			}
		}
		if !res.GetHasMore() || len(res.GetChains()) == 0 {
			return nil
		}
	}
}

func (a *app) chainCommand() *cobra.Command {
	return group("chain", "show chains", &cobra.Command{Use: "list", Short: "list the chains, oldest first", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			rows := [][]string{{"CHAIN", "STATE", "CUT", "ABSORBED", "SETTLED", "WRITER"}}
			err := eachChain(ctx, c, func(ch *novapb.ChainInfo) error {
				if a.output == "json" {
					return a.show(view(ch), nil)
				}
				cut := "-"
				if ch.GetState() != "open" {
					cut = fmt.Sprint(ch.GetCut())
				}
				rows = append(rows, []string{ch.GetChainId(), ch.GetState(), cut, fmt.Sprint(ch.GetAbsorbedTo()), fmt.Sprint(ch.GetSettledTo()), ch.GetAddress()})
				return nil
			})
			if err != nil {
				return err
			}
			if a.output != "json" {
				table(a.Out, rows...)
			}
			return nil
		})
	}})
}

func (a *app) tokenCommand() *cobra.Command {
	var operations, buckets, streams []string
	var ttl string
	mint := &cobra.Command{Use: "mint", Short: "make a scoped credential", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		req := &novapb.MintTokenRequest{Operations: operations, Buckets: buckets, Streams: streams}
		if ttl != "" {
			d, err := config.ParseDuration(ttl)
			if err != nil {
				return usagef("--ttl: %w", err)
			}
			req.TtlMs = d.Milliseconds()
		}
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			res, err := c.Admin.MintToken(ctx, req)
			if err != nil {
				return err
			}
			return a.show(view(res), func(w io.Writer) { fmt.Fprintln(w, res.GetSecret()) })
		})
	}}
	mint.Flags().StringSliceVar(&operations, "operation", nil, "an operation it allows; repeatable")
	mint.Flags().StringSliceVar(&buckets, "bucket", nil, "a bucket it allows, a trailing * matches a prefix; repeatable")
	mint.Flags().StringSliceVar(&streams, "stream", nil, "a stream it allows, a trailing * matches a prefix; repeatable")
	mint.Flags().StringVar(&ttl, "ttl", "", "how long it is valid, for example 30d; absent: for ever")
	list := &cobra.Command{Use: "list", Short: "list credentials", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			rows := [][]string{{"ID", "OPERATIONS", "BUCKETS", "STREAMS", "EXPIRES", "REVOKED"}}
			for after := ""; ; {
				res, err := c.Admin.ListTokens(ctx, &novapb.ListTokensRequest{StartAfter: after})
				if err != nil {
					return err
				}
				for _, t := range res.GetTokens() {
					after = t.GetTokenId()
					if a.output == "json" {
						if err := a.show(view(t), nil); err != nil {
							return err
						}
					}
					rows = append(rows, []string{
						t.GetTokenId(), strings.Join(t.GetOperations(), ","), strings.Join(t.GetBuckets(), ","), strings.Join(t.GetStreams(), ","), when(t.GetExpiresAt()), fmt.Sprint(t.GetRevoked()),
					})
				}
				if !res.GetHasMore() || len(res.GetTokens()) == 0 {
					break
				}
			}
			if a.output != "json" {
				table(a.Out, rows...)
			}
			return nil
		})
	}}
	revoke := &cobra.Command{Use: "revoke ID", Short: "end a credential", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			_, err := c.Admin.RevokeToken(ctx, &novapb.RevokeTokenRequest{TokenId: args[0]})
			if err != nil {
				return err
			}
			return a.show(map[string]string{"revoked": args[0]}, func(w io.Writer) { fmt.Fprintln(w, "revoked", args[0]) })
		})
	}}
	return group("token", "manage credentials", mint, list, revoke)
}
