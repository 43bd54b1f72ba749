package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/metastore"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/novad"
)

// chains is where slots are.
const chains = "chain/"

// backing is storage that outlives its nodes.
type backing interface {
	config(t *testing.T, args ...string) novad.Config
}

// directory is the storage of --dir.
type directory string

func (d directory) config(t *testing.T, args ...string) novad.Config {
	return nodeConfig(t, append([]string{"--dir", string(d)}, args...)...)
}

// eachBacking runs a test once per kind of storage.
func eachBacking(t *testing.T, run func(t *testing.T, b backing)) {
	t.Run("memory", func(t *testing.T) { run(t, newStorage()) })
	t.Run("dir", func(t *testing.T) { run(t, directory(t.TempDir())) })
}

// withFaults starts a node with faults between it and its storage; set changes
// its configuration.
func withFaults(t *testing.T, b backing, set ...func(*novad.Config)) (*faulty, *client) {
	t.Helper()
	f := &faulty{}
	cfg := b.config(t)
	for _, s := range set {
		s(&cfg)
	}
	wrapObjects, wrapMetastore := cfg.WrapObjects, cfg.WrapMetastore
	cfg.WrapObjects = func(own objectstore.Store) objectstore.Store {
		if wrapObjects != nil {
			own = wrapObjects(own)
		}
		f.objects = fault.New(own)
		return f.objects
	}
	cfg.WrapMetastore = func(own metastore.Store) metastore.Store {
		if wrapMetastore != nil {
			own = wrapMetastore(own)
		}
		f.metadata = metafault.New(own)
		return f.metadata
	}
	f.node = startNode(t, cfg)
	t.Cleanup(func() { stopNode(t, f.node) })
	awaitReady(t, f.node)
	return f, dial(t, f.node.Addr())
}

// What passes by itself is not seen by callers, and stores nothing twice.
func TestPassingFaultsOfObjects(t *testing.T) {
	for name, do := range map[string]fault.Action{
		"reply lost, then 412": fault.LoseReply, "409": fault.Conflict, "throttled": fault.Throttle, "unavailable": fault.FailBefore,
	} {
		t.Run(name, func(t *testing.T) {
			eachBacking(t, func(t *testing.T, b backing) {
				f, c := withFaults(t, b)
				c.create(t, "s", nil)
				var want []string
				for i := range 20 {
					rule := f.objects.Script(fault.Rule{Op: fault.Put, Prefix: chains, Nth: 1, Times: 1 + i%2, Do: do})
					want = append(want, fmt.Sprint(i))
					c.append(t, uint64(i), "s", want[i])
					if rule.Acted() == 0 {
						t.Fatal("the fault did not happen")
					}
					f.objects.Clear()
				}
				c.expect(t, "s", 0, want...)
				c.mustVerify(t)
			})
		})
	}
}

// A caller's deadline holds also when the store never answers: a typed error with
// outcome UNKNOWN, never an ack, and appends go on by themselves when it answers.
func TestObjectsHang(t *testing.T) {
	for name, do := range map[string]fault.Action{"before": fault.Hang, "after": fault.HangAfter} {
		t.Run(name, func(t *testing.T) {
			eachBacking(t, func(t *testing.T, b backing) {
				t.Parallel() // they mostly wait
				f, c := withFaults(t, b)
				c.create(t, "s", nil)
				c.append(t, 0, "s", "a")
				rule := f.objects.Script(fault.Rule{Op: fault.Put, Prefix: chains, Do: do})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := time.Now()
				req := request("s", "b")
				req.ProducerId = "p"
				err := c.appendErr(ctx, req)
				if status.Code(err) != codes.DeadlineExceeded || reason.OutcomeOf(err) == reason.NotCommitted || time.Since(began) > 10*time.Second {
					t.Fatalf("%v after %v, outcome %q", err, time.Since(began), reason.OutcomeOf(err))
				}
				if rule.Acted() == 0 {
					t.Fatal("the fault did not happen")
				}
				f.objects.Clear()
				eventually(t, 60*time.Second, func() error {
					return c.appendErr(within(t, 5*time.Second), req)
				})
				c.append(t, 2, "s", "c")
				c.expect(t, "s", 0, "a", "b", "c")
				c.mustVerify(t)
			})
		})
	}
}

// Open streams take appends without the metastore, as long as the lease holds.
func TestAppendsFlowWithoutMetastore(t *testing.T) {
	eachBacking(t, func(t *testing.T, b backing) {
		f, c := withFaults(t, b, func(cfg *novad.Config) { cfg.Sequencer.LeaseTTL = 10 * time.Minute })
		c.create(t, "s", nil)
		c.append(t, 0, "s", "0")
		c.expect(t, "s", 0, "0") // readers know the name, too
		f.metadata.SetOutage(true)
		want := []string{"0"}
		for i := 1; i < 50; i++ {
			want = append(want, fmt.Sprint(i))
			c.append(t, uint64(i), "s", want[i])
		}
		c.expect(t, "s", 0, want...)
		f.metadata.SetOutage(false)
		c.append(t, 50, "s", "50")
		c.mustVerify(t)
	})
}

// Damaged bytes are DATA_LOSS, never data; only their records suffer, and
// verification finds them.
func TestDamagedObject(t *testing.T) {
	for name, do := range map[string]fault.Action{"one bit": fault.Corrupt, "truncated": fault.Truncate} {
		t.Run(name, func(t *testing.T) {
			s := newStorage()
			first := startNode(t, s.config(t))
			awaitReady(t, first)
			c := dial(t, first.Addr())
			c.create(t, "hurt", nil)
			c.create(t, "well", nil)
			c.append(t, 0, "well", "w")
			before, err := s.objects.List(t.Context(), chains, "", 1000)
			if err != nil {
				t.Fatal(err)
			}
			c.append(t, 0, "hurt", "some bytes that will be damaged in a moment")
			after, err := s.objects.List(t.Context(), chains, "", 1000)
			if err != nil || len(after) != len(before)+1 {
				t.Fatalf("%d slots, then %d: %v", len(before), len(after), err)
			}
			c.append(t, 1, "hurt", "whole")
			// The next node has an empty window: it reads from storage.
			stopNode(t, first)
			f, c := withFaults(t, s)
			c.expect(t, "well", 0, "w")
			f.objects.Script(fault.Rule{Op: fault.Read, Prefix: after[len(before)].Key, Do: do})
			_, err = c.reads.Read(within(t, 20*time.Second), &novapb.ReadRequest{Bucket: bucket, Stream: "hurt"})
			wantErr(t, err, codes.DataLoss, reason.ChecksumMismatch)
			c.expect(t, "hurt", 1, "whole")
			c.expect(t, "well", 0, "w")
			c.append(t, 1, "well", "w")
			findings, err := c.verify(t.Context())
			if err != nil || len(findings) == 0 {
				t.Fatalf("verify found %q, %v", findings, err)
			}
			f.objects.Clear()
			c.mustVerify(t)
		})
	}
}

// A node without work writes nothing.
func TestIdleNodePutsNothing(t *testing.T) {
	f, c := withFaults(t, newStorage())
	c.create(t, "s", nil)
	c.append(t, 0, "s", "a")
	puts := func() int {
		n := f.objects.Counts()
		return n[fault.PutIfAbsent].Calls + n[fault.PutIfMatch].Calls
	}
	// What the append leaves to be done has its time first.
	settled := puts()
	eventually(t, 30*time.Second, func() error {
		const quiet = 6 * time.Second // longer than anything waits before it tidies up
		time.Sleep(quiet)
		now := puts()
		defer func() { settled = now }()
		if now != settled {
			return fmt.Errorf("%d puts in %v", now-settled, quiet)
		}
		return nil
	})
	time.Sleep(4 * time.Second) // longer than a lease's renewal
	if now := puts(); now != settled {
		t.Fatalf("%d puts while idle", now-settled)
	}
}
