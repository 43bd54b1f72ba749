package failover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// upkeep is what settles and reclaims behind the clients, seen from outside.
type upkeep struct {
	raw     indexpb.IndexServiceClient
	index   *catalog.Client
	objects objectstore.Store // nil: not to be seen
	// hurries: markers need not wait until they are due.
	hurries bool
}

func newUpkeep(raw indexpb.IndexServiceClient, objects objectstore.Store, hurries bool) *upkeep {
	return &upkeep{raw: raw, index: catalog.New(raw), objects: objects, hurries: hurries}
}

// moved are slots, of all chains.
type moved struct{ settled, reclaimed uint64 }

func (u *upkeep) moved(ctx context.Context) (m moved, err error) {
	err = u.index.EachChain(ctx, func(c *indexpb.Chain) error {
		m.settled += c.GetSettledTo()
		m.reclaimed += c.GetReclaimedTo()
		return nil
	})
	return m, err
}

// queues are those whose markers wait for a time that no history lasts.
var queues = []string{"settled", "unref", "reclaim", "chain", "delete", "directory"}

// lateness is how old what was asked of a store becomes at most here, before it
// takes effect or is refused.
const lateness = 15 * time.Second

// hurry makes some markers due now, one in n, as if time had passed.
func (u *upkeep) hurry(ctx context.Context, r *rand.Rand, n int) error {
	now := time.Now()
	for _, queue := range queues {
		all, err := u.index.ListDue(ctx, queue, now.AddDate(1, 0, 0), 100)
		if err != nil {
			return err
		}
		for _, m := range all {
			at := time.UnixMilli(max(m.Due.GetAt(), m.Due.GetLeasedUntil()))
			if r.IntN(n) != 0 || at.Before(now.Add(300*time.Millisecond)) {
				continue
			}
			if err := u.age(ctx, m, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// age makes a marker due. One of a directory tells by its id how long its object
// may have been under way.
func (u *upkeep) age(ctx context.Context, m catalog.Marker, now time.Time) error {
	if m.Due.GetQueue() != "directory" {
		return u.index.MoveDue(ctx, m, m.Due.GetQueue(), now)
	}
	if now.Sub(m.Armed()) < lateness {
		return nil
	}
	d := proto.CloneOf(m.Due)
	d.At, d.LeasedUntil, d.Attempt = now.UnixMilli(), 0, stream.NewAttemptID().String()
	if id, err := ulid.ParseStrict(d.GetDueId()); err == nil && now.Sub(m.Armed()) < 96*time.Hour {
		if err := id.SetTime(uint64(now.Add(-100 * time.Hour).UnixMilli())); err != nil {
			return err
		}
		d.DueId = id.String()
	}
	if _, err := u.raw.PutDue(ctx, &indexpb.PutDueRequest{Due: d, ExpectedVersion: catalog.Absent}); err != nil && !catalog.IsConflict(err) {
		return err
	}
	return u.index.DropDue(ctx, m)
}

// keepHurrying does so until ctx ends.
func (u *upkeep) keepHurrying(ctx context.Context, r *rand.Rand, n int) error {
	if !u.hurries {
		return nil
	}
	for {
		if err := u.hurry(ctx, r, n); err != nil && ctx.Err() == nil {
			return fmt.Errorf("hurry: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(some(r, 200*time.Millisecond)):
		}
	}
}

// caughtUp waits until all that was committed is settled and reclaimed.
func (u *upkeep) caughtUp(ctx context.Context, r *rand.Rand, patience time.Duration) error {
	return within(ctx, patience, func(ctx context.Context) error {
		if u.hurries {
			if err := u.hurry(ctx, r, 1); err != nil {
				return err
			}
		}
		return u.behind(ctx)
	})
}

// behind says what is not settled or reclaimed.
func (u *upkeep) behind(ctx context.Context) error {
	return u.index.EachChain(ctx, func(c *indexpb.Chain) error {
		end := c.GetAbsorbedTo()
		switch {
		case c.GetState() == indexpb.ChainState_CHAIN_STATE_RETIRED:
			return nil
		case c.GetState() == indexpb.ChainState_CHAIN_STATE_SEALED:
			end = c.GetCut()
		case u.objects != nil:
			id, err := stream.ParseChainID(c.GetChainId())
			if err != nil {
				return err
			}
			more, err := u.objects.List(ctx, "chain/"+c.GetChainId()+"/", chain.SlotKey(id, stream.Slot(end)), 1)
			if err != nil {
				return err
			}
			end += uint64(len(more))
		}
		if c.GetReclaimedTo() != end || c.GetSettledTo() != end {
			return fmt.Errorf("chain %s, %s: absorbed to %d, settled to %d, reclaimed to %d, of %d; pins %v",
				c.GetChainId(), c.GetState(), c.GetAbsorbedTo(), c.GetSettledTo(), c.GetReclaimedTo(), end, c.GetPins())
		}
		return nil
	})
}

// verified is what a verification came to.
type verified struct {
	records, settled uint64
	found            []string
}

// verify is verify --all.
func verify(ctx context.Context, d *door) (v verified, err error) {
	call, err := d.admin.Verify(ctx, &novapb.VerifyRequest{All: true})
	if err != nil {
		return v, err
	}
	for {
		m, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return v, nil
		}
		if err != nil {
			return v, err
		}
		for _, f := range m.GetFindings() {
			v.found = append(v.found, fmt.Sprintf("%s %s: %s: %s", m.GetStream(), m.GetStreamId(), f.GetKind(), f.GetMessage()))
		}
		if m.GetDone() {
			v.records += m.GetRecords()
			v.settled += m.GetSettledRecords()
		}
	}
}

// verifyAll verifies everything, once that can be done.
func (p *plan) verifyAll(ctx context.Context, d *door) error {
	var v verified
	err := within(ctx, p.patience, func(ctx context.Context) (err error) {
		v, err = verify(ctx, d)
		return err
	})
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	p.report.verified(&v)
	if len(v.found) > 0 {
		return fmt.Errorf("verify finds %d faults:\n%s", len(v.found), lines(v.found))
	}
	return nil
}

// census counts what the store holds, by the first part of the keys.
func (u *upkeep) census(ctx context.Context) (map[string]int, error) {
	all := map[string]int{}
	if u.objects == nil {
		return all, nil
	}
	for after := ""; ; {
		page, err := u.objects.List(ctx, "", after, 1000)
		if err != nil {
			return nil, err
		}
		for _, o := range page {
			kind, _, _ := strings.Cut(o.Key, "/")
			all[kind]++
			after = o.Key
		}
		if len(page) < 1000 {
			break
		}
	}
	for _, queue := range append(slices.Clone(queues), "dead-settled", "dead-unref", "dead-reclaim", "dead-chain", "dead-delete", "dead-directory") {
		due, err := u.index.ListDue(ctx, queue, time.Now().AddDate(1, 0, 0), 1000)
		if err != nil {
			return nil, err
		}
		if len(due) > 0 {
			all["due/"+queue] = len(due)
		}
	}
	err := u.index.EachChain(ctx, func(c *indexpb.Chain) error {
		all["chain "+strings.ToLower(strings.TrimPrefix(c.GetState().String(), "CHAIN_STATE_"))]++
		return nil
	})
	return all, err
}
