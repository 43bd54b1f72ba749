package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

const backgroundNow = 1_800_000_000_000

func busyBackground() *novapb.GetBackgroundResponse {
	return &novapb.GetBackgroundResponse{
		Now: backgroundNow, Settlers: 2, Reapers: 1, Unanswered: []string{"n3.settler"},
		Chains: []*novapb.BackgroundChain{
			{ChainId: "OLD", State: "sealed", Cut: 9, AbsorbedTo: 9, SettledTo: 4, ReclaimedTo: 2, PinnedStreams: 1, Known: true, UnsettledBytes: 3 << 20, UnsettledSince: backgroundNow - 90_000, Blocked: "too many pins"},
			{ChainId: "NEW", State: "open", AbsorbedTo: 7, SettledTo: 7},
		},
		MoreChains: true, NextStartAfter: "NEW",
		Queues: []*novapb.BackgroundQueue{
			{Queue: "reclaim", Waiting: 1000, MoreWaiting: true, Due: 3, InWork: 4, OldestAt: backgroundNow - 125_000, Dead: 8, MoreDead: true, Done: 11, NotDone: 12},
			{Queue: "chain", Waiting: 1, OldestAt: backgroundNow + 3_600_000},
			{Queue: "unref"},
		},
		Totals: &novapb.BackgroundTotals{
			UnsettledBytes: 3 << 20, SettledBytes: 5 << 30, SettledSince: backgroundNow - 86_400_000, AppendedBytes: 4 << 30, TransitWrittenBytes: 5 << 30,
			SettledWrittenBytes: 4 << 30, WriteAmplification: 2.25, BacklogSlots: 1, AbsorbLagMs: 2_000, SettleLagMs: 90_000, BlockedChains: 1, RewrittenBytes: 1 << 30,
		},
		Export: &novapb.BackgroundExport{Enabled: true, IntervalMs: 3_600_000, Begun: 13, Completed: 12, CompletedBegunAt: backgroundNow - 600_000},
	}
}

// Every figure has its place, and what is missing or wrong is said.
func TestBackgroundIsShown(t *testing.T) {
	w := begin(t)
	w.Background = busyBackground()
	out := strings.Join(strings.Fields(w.must(t, "", "background")), " ")
	for _, want := range []string{
		"told by 2 settlers and 1 reaper at 2027-01-15T08:00:00.000Z", "NO ANSWER from n3.settler: what they know is missing",
		"absorbing 1 slot to absorb, a backlog for 2s", "settling 3.0 MiB in transit, to settle, the oldest for 1m30s",
		"settled 5.0 GiB since 2027-01-14T08:00:00.000Z", "BLOCKED 1 chain, see below",
		"written 5.0 GiB in transit, 4.0 GiB by settling (1.0 GiB of it rewritten), for 4.0 GiB appended: 2.25 bytes per byte appended",
		"export number 12 is complete, begun 10m ago, one every 1h",
		"OLD sealed at 9 9 4 2 0 3.0 MiB 1m30s 1 damaged stream", "NEW open 7 7 0 ? ? ? -", "there are more: --start-after NEW", "blocked: OLD: too many pins",
		"reclaim 1000+ 3 4 2m5s ago 8+ 11 12", "chain 1 0 0 in 1h 0 0 0", "unref 0 0 0 - 0 0 0", "see nova background dead",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	w.Background.Export, w.Background.Totals = &novapb.BackgroundExport{}, &novapb.BackgroundTotals{}
	out = strings.Join(strings.Fields(w.must(t, "", "background")), " ")
	for _, want := range []string{"absorbing 0 slots to absorb settling 0 bytes in transit, to settle written", "appended: not known", "export none are made"} {
		if !strings.Contains(out, want) {
			t.Errorf("idle: it does not say %q:\n%s", want, out)
		}
	}
	var got struct {
		Now    int64
		Totals map[string]any
		Chains []struct {
			Blocked string
			Known   bool
		}
		Queues []struct {
			MoreWaiting bool `json:"more_waiting"`
		}
		Unanswered []string
	}
	w.Background = busyBackground()
	if err := json.Unmarshal([]byte(w.must(t, "", "background", "-o", "json")), &got); err != nil {
		t.Fatal(err)
	}
	if got.Now != backgroundNow || got.Totals["write_amplification"] != 2.25 || got.Chains[0].Blocked != "too many pins" || got.Chains[1].Known || !got.Queues[0].MoreWaiting || got.Unanswered[0] != "n3.settler" {
		t.Errorf("%+v", got)
	}
}

// The limits that the help names are the server's.
func TestBackgroundRefusals(t *testing.T) {
	w := begin(t)
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"background --limit 1001", 1, "1000"},
		{"background --start-after x", 1, "26"},
		{"background nonsense", 2, "unknown command"},
		{"background revive", 2, "accepts between 1 and 2 arg"},
		{"background revive reclaim", 2, "either a DUE_ID or --all"},
		{"background revive reclaim 01ARZ3NDEKTSV4RRFFQ69G5FAV --all", 2, "either a DUE_ID or --all"},
		{"background revive reclaim 01ARZ3NDEKTSV4RRFFQ69G5FAV", 1, "not among what reclaim has set aside"},
		{"background dead a b", 2, "accepts at most 1 arg"},
	} {
		if r := w.run(t, "", strings.Fields(c.args)...); r.code != c.code || r.out != "" || !strings.Contains(r.err, c.says) {
			t.Errorf("nova %s: %+v, want exit %d that says %q", c.args, r, c.code, c.says)
		}
	}
}

// What was set aside is listed by what it is about, and put back one by one or all.
func TestDeadLettersAreListedAndRevived(t *testing.T) {
	w := begin(t)
	const one, two, three = "01ARZ3NDEKTSV4RRFFQ69G5FA1", "01ARZ3NDEKTSV4RRFFQ69G5FA2", "01ARZ3NDEKTSV4RRFFQ69G5FA3"
	if out := w.must(t, "", "background", "dead"); out != "nothing is set aside\n" {
		t.Errorf("none: %q", out)
	}
	w.DeadLetters = []*novapb.DeadLetter{
		{Queue: "bucket", DueId: one, SetAsideAt: backgroundNow, Attempts: 50, Bucket: "logs"},
		{Queue: "reclaim", DueId: one, SetAsideAt: backgroundNow, Attempts: 51, ChainId: "C", Number: 7},
		{Queue: "reclaim", DueId: two, SetAsideAt: backgroundNow, Attempts: 50, ChainId: "C", StreamId: "S"},
		{Queue: "reclaim", DueId: three, SetAsideAt: backgroundNow, Attempts: 50, Bucket: "logs", Stream: "app", StreamId: "S"},
		{Queue: "settled", DueId: one, SetAsideAt: backgroundNow, Attempts: 50, Object: "settled/x"},
	}
	out := strings.Join(strings.Fields(w.must(t, "", "background", "dead")), " ")
	for _, want := range []string{
		"bucket " + one + " 2027-01-15T08:00:00.000Z 50 bucket logs reclaim " + one, "51 chain C, slot 7 reclaim", "50 stream id S, chain C reclaim", "50 stream logs/app, stream id S settled", "object settled/x",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	if out := w.must(t, "", "background", "dead", "settled", "-o", "json"); strings.Count(out, "\n") != 1 || !strings.Contains(out, `"due_id":"`+one+`"`) {
		t.Errorf("of one queue: %s", out)
	}
	if out := w.must(t, "", "background", "revive", "reclaim", two); out != "1 put back into reclaim\n" || len(w.DeadLetters) != 4 {
		t.Errorf("one: %q, left %v", out, w.DeadLetters)
	}
	if out := w.must(t, "", "background", "revive", "reclaim", "--all", "-o", "json"); out != `{"queue":"reclaim","revived":2}`+"\n" || len(w.DeadLetters) != 2 {
		t.Errorf("all of a queue: %q, left %v", out, w.DeadLetters)
	}
	if out := w.must(t, "", "background", "revive", "reclaim", "--all"); out != "0 put back into reclaim\n" {
		t.Errorf("none is left: %q", out)
	}
}

func TestSizesAndAges(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 bytes", 1: "1 byte", 1023: "1023 bytes", 1024: "1.0 KiB", 1536 << 20: "1.5 GiB", 1 << 63: "8.0 EiB"} {
		if got := size(n); got != want {
			t.Errorf("%d bytes: %q, want %q", n, got, want)
		}
	}
	for ms, want := range map[int64]string{-5: "0s", 0: "0s", 250: "250ms", 59_400: "59s", 90_000: "1m30s", 630_000: "11m", 3_600_000: "1h", 3 * 86_400_000: "3d", 50 * 3_600_000: "2d2h"} {
		if got := age(ms); got != want {
			t.Errorf("%d ms: %q, want %q", ms, got, want)
		}
	}
}
