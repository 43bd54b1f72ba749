package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func (a *app) backgroundCommand() *cobra.Command {
	var req novapb.GetBackgroundRequest
	cmd := &cobra.Command{
		Use: "background", Short: "show the work in the background: absorbing, settling, reclaiming, exports",
		Long: `background shows what the services do by themselves, how far they are, and what
keeps them.

Records are first written to slots of chains, in transit. Settlers absorb the
slots (they write a directory of what is in them), then settle them: the records
move to objects of their streams, where they stay. Reapers then delete the slots.
What is to be done later is a marker in a queue; one whose work failed too often is
set aside as a dead letter, which dead lists and revive puts back.

The first lines are about all chains. Of the chains, those that are gone are left
out, and at most 1000 are shown; --start-after goes on. A ? stands for what no
settler has told. Of a queue at most 1000 markers are counted (unref: 8), a + says
that there are more. What processes count begins anew when they start.

A process that does not answer is named, and what it knows is missing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				res, err := c.Admin.GetBackground(ctx, &req)
				if err != nil {
					return err
				}
				return a.show(view(res), func(w io.Writer) { backgroundText(w, res) })
			})
		},
	}
	cmd.Flags().StringVar(&req.StartAfter, "start-after", "", "only chains after this id, that is, younger ones")
	cmd.Flags().Uint32Var(&req.Limit, "limit", 0, "at most this many chains, up to 1000; 0 is 1000")
	cmd.AddCommand(a.deadCommand(), a.reviveCommand())
	return cmd
}

func (a *app) deadCommand() *cobra.Command {
	return &cobra.Command{
		Use: "dead [QUEUE]", Short: "list due work that was set aside",
		Long: `dead lists dead letters: markers whose work failed 50 times and was set aside, with
what they are about. The log of the reapers says why ("due work failed too often").
What is set aside is not lost; it leaks until revive puts it back. At most 1000 per
queue are listed (unref: 8), and more come into sight when these are revived.

QUEUE is a queue that background shows; without it those of all are listed.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &novapb.ListDeadLettersRequest{}
			if len(args) > 0 {
				req.Queue = args[0]
			}
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				res, err := c.Admin.ListDeadLetters(ctx, req)
				if err != nil {
					return err
				}
				if a.output == "json" {
					for _, l := range res.GetLetters() {
						if err := a.show(view(l), nil); err != nil {
							return err
						}
					}
					return nil
				}
				if len(res.GetLetters()) == 0 {
					fmt.Fprintln(a.Out, "nothing is set aside")
					return nil
				}
				rows := [][]string{{"QUEUE", "ID", "SET ASIDE", "TRIES", "ABOUT"}}
				for _, l := range res.GetLetters() {
					rows = append(rows, []string{l.GetQueue(), l.GetDueId(), when(l.GetSetAsideAt()), fmt.Sprint(l.GetAttempts()), about(l)})
				}
				table(a.Out, rows...)
				if res.GetHasMore() {
					fmt.Fprintln(a.Out, "there are more")
				}
				return nil
			})
		},
	}
}

func (a *app) reviveCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "revive QUEUE [DUE_ID]", Short: "put due work back that was set aside",
		Long: `revive puts a dead letter back into its queue: it is tried again at once, as often
as a new one. Do so when what made it fail is gone. All work may be done twice, so
this is always safe, and so is repeating it.

QUEUE and DUE_ID are as dead shows them; --all puts back all of the queue.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &novapb.ReviveDeadLetterRequest{Queue: args[0]}
			if len(args) > 1 {
				req.DueId = args[1]
			}
			if all == (req.GetDueId() != "") {
				return usagef("revive needs either a DUE_ID or --all")
			}
			revived := uint64(0)
			for {
				n := uint64(0)
				err := a.call(cmd, func(ctx context.Context, c *client.Client) error {
					res, err := c.Admin.ReviveDeadLetter(ctx, req)
					n = res.GetRevived()
					return err
				})
				if err != nil {
					if revived > 0 {
						err = fmt.Errorf("after %d were put back: %w", revived, err)
					}
					return err
				}
				revived += n
				// A queue is listed in part; one that is empty ends it.
				if !all || n == 0 {
					break
				}
			}
			if !all && revived == 0 {
				return errors.New(req.GetDueId() + " is not among what " + req.GetQueue() + " has set aside; it may have been put back already")
			}
			return a.show(map[string]any{"queue": req.GetQueue(), "revived": revived}, func(w io.Writer) {
				fmt.Fprintf(w, "%d put back into %s\n", revived, req.GetQueue())
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all that the queue has set aside")
	return cmd
}

// about says what a marker is about.
func about(l *novapb.DeadLetter) string {
	var parts []string
	switch {
	case l.GetStream() != "":
		parts = append(parts, "stream "+l.GetBucket()+"/"+l.GetStream())
	case l.GetStreamId() == "" && l.GetBucket() != "":
		parts = append(parts, "bucket "+l.GetBucket())
	}
	if l.GetStreamId() != "" {
		parts = append(parts, "stream id "+l.GetStreamId())
	}
	if l.GetChainId() != "" {
		parts = append(parts, "chain "+l.GetChainId())
		if l.GetNumber() > 0 {
			parts = append(parts, fmt.Sprint("slot ", l.GetNumber()))
		}
	}
	if l.GetObject() != "" {
		parts = append(parts, "object "+l.GetObject())
	}
	return dash(strings.Join(parts, ", "))
}

func backgroundText(w io.Writer, r *novapb.GetBackgroundResponse) {
	now, t := r.GetNow(), r.GetTotals()
	fmt.Fprintf(w, "told by %s and %s at %s\n", count(uint64(r.GetSettlers()), "settler"), count(uint64(r.GetReapers()), "reaper"), when(now))
	if len(r.GetUnanswered()) > 0 {
		fmt.Fprintf(w, "NO ANSWER from %s: what they know is missing below\n", strings.Join(r.GetUnanswered(), ", "))
	}
	fmt.Fprintln(w)
	var rows [][]string
	line := func(what, format string, args ...any) {
		rows = append(rows, []string{what, fmt.Sprintf(format, args...)})
	}
	absorb := count(t.GetBacklogSlots(), "slot") + " to absorb"
	if t.GetAbsorbLagMs() > 0 {
		absorb += ", a backlog for " + age(t.GetAbsorbLagMs())
	}
	line("absorbing", "%s", absorb)
	settle := size(t.GetUnsettledBytes()) + " in transit, to settle"
	if t.GetSettleLagMs() > 0 {
		settle += ", the oldest for " + age(t.GetSettleLagMs())
	}
	line("settling", "%s", settle)
	if t.GetSettledSince() > 0 {
		line("settled", "%s since %s", size(t.GetSettledBytes()), when(t.GetSettledSince()))
	}
	if t.GetBlockedChains() > 0 {
		line("BLOCKED", "%s, see below", count(uint64(t.GetBlockedChains()), "chain"))
	}
	amplification := "not known"
	if t.GetWriteAmplification() > 0 {
		amplification = fmt.Sprintf("%.2f bytes per byte appended", t.GetWriteAmplification())
	}
	line("written", "%s in transit, %s by settling (%s of it rewritten), for %s appended: %s",
		size(t.GetTransitWrittenBytes()), size(t.GetSettledWrittenBytes()), size(t.GetRewrittenBytes()), size(t.GetAppendedBytes()), amplification)
	switch e := r.GetExport(); {
	case e.GetCompleted() > 0:
		text := fmt.Sprintf("number %d is complete, begun %s ago", e.GetCompleted(), age(now-e.GetCompletedBegunAt()))
		if e.GetEnabled() {
			text += ", one every " + age(e.GetIntervalMs())
		} else {
			text += "; none are made any more"
		}
		line("export", "%s", text)
	case e.GetEnabled():
		line("export", "none is complete yet, one every %s", age(e.GetIntervalMs()))
	default:
		line("export", "none are made")
	}
	table(w, rows...)

	fmt.Fprintln(w)
	rows = [][]string{{"CHAIN", "STATE", "ABSORBED", "SETTLED", "RECLAIMED", "BACKLOG", "TO SETTLE", "SINCE", "KEPT FOR"}}
	var blocked []string
	for _, c := range r.GetChains() {
		state := c.GetState()
		if state != "open" {
			state += fmt.Sprint(" at ", c.GetCut())
		}
		backlog, wait, since := "?", "?", "?"
		if c.GetKnown() {
			backlog, wait, since = fmt.Sprint(c.GetBacklogSlots()), size(c.GetUnsettledBytes()), "-"
			if c.GetUnsettledSince() > 0 {
				since = age(now - c.GetUnsettledSince())
			}
		}
		kept := "-"
		if n := c.GetPinnedStreams(); n > 0 {
			kept = count(uint64(n), "damaged stream")
		}
		rows = append(rows, []string{c.GetChainId(), state, fmt.Sprint(c.GetAbsorbedTo()), fmt.Sprint(c.GetSettledTo()), fmt.Sprint(c.GetReclaimedTo()), backlog, wait, since, kept})
		if c.GetBlocked() != "" {
			blocked = append(blocked, "blocked: "+c.GetChainId()+": "+c.GetBlocked())
		}
	}
	table(w, rows...)
	if r.GetMoreChains() {
		fmt.Fprintln(w, "there are more: --start-after", r.GetNextStartAfter())
	}
	for _, b := range blocked {
		fmt.Fprintln(w, b)
	}

	fmt.Fprintln(w)
	rows = [][]string{{"QUEUE", "WAITING", "DUE NOW", "IN WORK", "FIRST DUE", "DEAD", "DONE", "NOT YET"}}
	dead := false
	for _, q := range r.GetQueues() {
		first := "-"
		if at := q.GetOldestAt(); at > now {
			first = "in " + age(at-now)
		} else if at > 0 {
			first = age(now-at) + " ago"
		}
		dead = dead || q.GetDead() > 0
		rows = append(rows, []string{
			q.GetQueue(), atLeast(q.GetWaiting(), q.GetMoreWaiting()), fmt.Sprint(q.GetDue()), fmt.Sprint(q.GetInWork()), first,
			atLeast(q.GetDead(), q.GetMoreDead()), fmt.Sprint(q.GetDone()), fmt.Sprint(q.GetNotDone()),
		})
	}
	table(w, rows...)
	if dead {
		fmt.Fprintln(w, "DEAD is what failed too often and was set aside: see nova background dead")
	}
}

// count is a number of things.
func count(n uint64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// atLeast is a number that may be a bound.
func atLeast(n uint32, more bool) string {
	if more {
		return fmt.Sprintf("%d+", n)
	}
	return fmt.Sprint(n)
}

// size is a number of bytes for people.
func size(n uint64) string {
	if n < 1<<10 {
		return count(n, "byte")
	}
	v, units := float64(n), []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for i, unit := range units {
		v /= 1 << 10
		if v < 1<<10 || i == len(units)-1 {
			return fmt.Sprintf("%.1f %s", v, unit)
		}
	}
	return ""
}

// age is a time in milliseconds for people: as exact as matters.
func age(ms int64) string {
	d := max(time.Duration(ms), 0) * time.Millisecond
	switch {
	case d < time.Second:
		return config.FormatDuration(d)
	case d < 10*time.Minute:
		return config.FormatDuration(d.Round(time.Second))
	case d < 48*time.Hour:
		return config.FormatDuration(d.Round(time.Minute))
	default:
		return config.FormatDuration(d.Round(time.Hour))
	}
}
