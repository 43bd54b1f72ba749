package sequencer

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Chains are settled, a part at a time and in their order, and their directories go,
// beside leaders that open streams, let them go, change their chains and come back to
// them, lose them and die: numbers are given once, and what was acknowledged stays
// readable (I1, I2, I5).
func TestSettlingBesideLeaders(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 8
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { settlingBeside(t, rand.New(rand.NewPCG(seed, 11))) })
		})
	}
}

type settlingChaos struct {
	*rand.Rand

	w      *world
	l      *leader
	d      *indexpb.StreamDescriptor
	bodies []string
	trim   uint64
	spans  []*span // that a settler is at, and what it has yet to do
	todo   [][]func(*span)
	onB    bool
}

func settlingBeside(t *testing.T, r *rand.Rand) {
	w := newWorld(t)
	w.another("writer2")
	c := &settlingChaos{Rand: r, w: w, l: w.lead(Config{IdleStream: time.Microsecond, SettledEvery: time.Hour}), d: w.stream(nil)}
	lives := 1
	c.onB = c.l.writesTo() != w.writer.address
	for range 120 {
		switch r.IntN(16) {
		default:
			c.append()
		case 0, 1, 2:
			c.settleSome()
		case 3, 4, 5:
			c.settleOn()
		case 6, 7:
			c.l.evict()
		case 8:
			c.l.followSettled(t.Context())
		case 9:
			c.lose()
		case 10:
			c.move()
		case 11:
			if lives < 5 {
				lives++
				old := c.l
				c.l = old.die()
				old.stop()
				c.onB = c.l.writesTo() != w.writer.address
			}
		case 12:
			if n := uint64(len(c.bodies)); n > c.trim && r.IntN(3) == 0 {
				c.trim += 1 + r.Uint64N(n-c.trim)
				if _, err := c.l.trim(c.d, c.trim); err != nil {
					t.Fatal(err)
				}
			}
		case 13:
			c.l.wantReadable(c.d, c.trim, uint64(len(c.bodies)))
		}
	}
	for len(c.spans) > 0 {
		c.settleOn()
	}
	w.settleAll()
	c.l.followSettled(t.Context())
	if b := w.bindings(); len(b) != 1 {
		t.Errorf("all is settled, and the bindings are %v", b)
	}
	c.l.wantReadable(c.d, c.trim, uint64(len(c.bodies)))
	c.l.evict()
	c.append()
	w.wantStored(c.d, c.bodies...)
	c.l.wantReadable(c.d, c.trim, uint64(len(c.bodies)))
	c.l.stop()
}

func (c *settlingChaos) append() {
	n := uint64(len(c.bodies))
	body := fmt.Sprint(n)
	c.l.append(produced(c.d, n, body), n, n+1)
	c.bodies = append(c.bodies, body)
}

// settleSome has a settler begin with some part of some chain.
func (c *settlingChaos) settleSome() {
	chains := c.w.writer.chainIDs()
	chain := chains[c.IntN(len(chains))]
	end := c.w.chainRecord(chain).GetSettledTo() + 1 + c.Uint64N(5)
	if s := c.w.span(chain, end); s != nil {
		c.spans = append(c.spans, s)
		c.todo = append(c.todo, []func(*span){(*span).fold, (*span).advance, (*span).discard})
	}
}

// settleOn has one of the settlers do the next step.
func (c *settlingChaos) settleOn() {
	if len(c.spans) == 0 {
		return
	}
	i := c.IntN(len(c.spans))
	c.todo[i][0](c.spans[i])
	if c.todo[i] = c.todo[i][1:]; len(c.todo[i]) == 0 {
		c.spans, c.todo = append(c.spans[:i], c.spans[i+1:]...), append(c.todo[:i], c.todo[i+1:]...)
	}
}

// lose has the present chain, or the connection to it, be lost, with a batch under
// way that has landed, or has not.
func (c *settlingChaos) lose() {
	t, n := c.w.t, uint64(len(c.bodies))
	body, f, epoch, at := fmt.Sprint(n), []fate{unheard, lose}[c.IntN(2)], c.l.epoch(), c.writer()
	at.script(always(f))
	a := c.l.pending(produced(c.d, n, body))
	synctest.Wait()
	at.script(nil)
	if f == unheard && c.IntN(2) == 0 {
		at.mu.Lock()
		chain := at.chain.id.String()
		at.mu.Unlock()
		if s := c.w.span(chain, 1<<40); s != nil {
			s.settle()
		}
	}
	if c.IntN(2) == 0 {
		at.disconnect()
	} else if err := at.end(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantAck(t, receive(t, a), n, n+1)
	c.bodies = append(c.bodies, body)
	c.l.later(epoch)
	c.onB = c.l.writesTo() != c.w.writer.address
}

func (c *settlingChaos) writer() *writer {
	if !c.onB {
		return c.w.writer
	}
	for _, o := range c.w.writer.peers {
		return o
	}
	return nil
}

// move has the leader go to the other chain-writer.
func (c *settlingChaos) move() {
	from, to := "writer", "writer2"
	if c.onB {
		from, to = to, from
	}
	c.l.moveTo(from, to)
	c.onB = !c.onB
}
