package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/novad"
)

// witness appends records that are all different, each once, and remembers what
// it was told of each.
type witness struct {
	stream string

	mu      sync.Mutex
	sent    int
	acked   map[string]uint64         // body -> number
	outcome map[string]reason.Outcome // of those that failed
}

func newWitness(stream string) *witness {
	return &witness{stream: stream, acked: map[string]uint64{}, outcome: map[string]reason.Outcome{}}
}

// append appends the next record; nil: it was acknowledged.
func (w *witness) append(ctx context.Context, c *client) error {
	w.mu.Lock()
	body := fmt.Sprint("record ", w.sent)
	w.sent++
	w.mu.Unlock()
	res, err := c.appends.Append(ctx, request(w.stream, body))
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.outcome[body] = reason.OutcomeOf(err)
		return err
	}
	w.acked[body] = res.GetAck().GetFirstSeq()
	return nil
}

// check finds acknowledged records where they were acknowledged, no record
// twice, and none that is said to be NOT_COMMITTED.
func (w *witness) check(ctx context.Context, c *client) error {
	got, err := c.readAll(ctx, w.stream, 0)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var wrong []error
	at := map[string]uint64{}
	for _, r := range got {
		body := string(r.GetBody())
		if first, ok := at[body]; ok {
			wrong = append(wrong, fmt.Errorf("%q is at %d and at %d", body, first, r.GetSeq()))
		}
		at[body] = r.GetSeq()
		if w.outcome[body] == reason.NotCommitted {
			wrong = append(wrong, fmt.Errorf("%q was not committed, and is at %d", body, r.GetSeq()))
		}
	}
	for body, want := range w.acked {
		if seq, ok := at[body]; !ok || seq != want {
			wrong = append(wrong, fmt.Errorf("%q was acknowledged at %d and is at %d, %v", body, want, seq, ok))
		}
	}
	return errors.Join(wrong...)
}

// A store that takes nothing for longer than a slot may stay undecided, or that
// refuses for good: the writer seals its own chain, as soon as it can; every
// append is answered, typed, with a true outcome; none is acknowledged. When the
// trouble ends, all goes on by itself in a new chain (I1, I2).
func TestObjectsTakeNothing(t *testing.T) {
	const appendTimeout = time.Second
	for name, do := range map[string]fault.Action{
		"refused": fault.Permanent, "unavailable": fault.FailBefore, "throttled": fault.Throttle, "silent": fault.Hang, "silent after it landed": fault.HangAfter,
		"replies lost": fault.LoseReply,
	} {
		t.Run(name, func(t *testing.T) {
			eachBacking(t, func(t *testing.T, b backing) {
				t.Parallel() // they mostly wait
				f, c := withFaults(t, b, func(cfg *novad.Config) {
					cfg.Sequencer.AppendTimeout, cfg.Sequencer.AdmissionTimeout = appendTimeout, appendTimeout
					cfg.ChainWriter.StuckAfter, cfg.ChainWriter.AttemptTimeout = appendTimeout, appendTimeout/2
				})
				c.create(t, "s", nil)
				w := newWitness("s")
				for range 10 {
					eventually(t, 30*time.Second, func() error { return w.append(within(t, 30*time.Second), c) })
				}
				f.objects.Script(fault.Rule{Op: fault.Put, Do: do})
				until := time.Now().Add(3 * appendTimeout)
				var work sync.WaitGroup
				for range 4 {
					work.Go(func() {
						for time.Now().Before(until) {
							sent := time.Now()
							err := w.append(within(t, time.Minute), c)
							switch code := status.Code(err); {
							case err == nil && do != fault.LoseReply && do != fault.HangAfter:
								t.Error("an append was acknowledged that is not stored")
							case err != nil && code != codes.DeadlineExceeded && code != codes.Unavailable && code != codes.ResourceExhausted,
								err != nil && reason.OutcomeOf(err) == "":
								t.Errorf("code %s, outcome %q: %v", code, reason.OutcomeOf(err), err)
							}
							if took := time.Since(sent); took > 15*appendTimeout {
								t.Errorf("answered after %v", took)
							}
						}
					})
				}
				work.Wait()
				if err := w.check(within(t, 30*time.Second), c); err != nil {
					t.Errorf("while it takes nothing: %v", err)
				}
				f.objects.Clear()
				eventually(t, 60*time.Second, func() error { return w.append(within(t, 10*time.Second), c) })
				if err := w.check(t.Context(), c); err != nil {
					t.Error(err)
				}
				c.mustVerify(t)
				told := map[reason.Outcome]int{}
				for _, o := range w.outcome {
					told[o]++
				}
				t.Logf("%d acknowledged, others %v", len(w.acked), told)

				// What was UNKNOWN does not change any more, and the next life agrees.
				before, err := c.readAll(t.Context(), "s", 0)
				if err != nil {
					t.Fatal(err)
				}
				stopNode(t, f.node)
				next := startNode(t, b.config(t))
				defer stopNode(t, next)
				awaitReady(t, next)
				after, err := dial(t, next.Addr()).readAll(t.Context(), "s", 0)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.EqualFunc(before, after, sameRecord) {
					t.Errorf("%d records, %d after a restart", len(before), len(after))
				}
			})
		})
	}
}

// One flight that the store refuses for good: the chain ends, the batch goes into
// the next one, and its caller does not notice.
func TestOneRefusalEndsTheChainOnly(t *testing.T) {
	eachBacking(t, func(t *testing.T, b backing) {
		f, c := withFaults(t, b)
		c.create(t, "s", nil)
		c.append(t, 0, "s", "a")
		first := chainsIn(t, c)
		rule := f.objects.Script(fault.Rule{Op: fault.Put, Prefix: chains, Nth: 1, Times: 1, Do: fault.Permanent})
		c.append(t, 1, "s", "b")
		if rule.Acted() != 1 {
			t.Fatal("the fault did not happen")
		}
		c.append(t, 2, "s", "c")
		if now := chainsIn(t, c); now == first {
			t.Errorf("the chains are still %s", now)
		}
		c.expect(t, "s", 0, "a", "b", "c")
		c.mustVerify(t)
	})
}

// chainsIn names the chains there are and their states.
func chainsIn(t *testing.T, c *client) string {
	t.Helper()
	res, err := c.admin.ListChains(t.Context(), &novapb.ListChainsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, ch := range res.GetChains() {
		all = append(all, ch.GetChainId()+" "+ch.GetState())
	}
	return strings.Join(all, ", ")
}

func sameRecord(a, b *novapb.Record) bool { return proto.Equal(a, b) }
