package reader

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

const (
	// maxSuspects is how much is looked at a second time at once.
	maxSuspects = 1000
	listAtOnce  = 1000
)

// VerifyObjects checks the rows of chains, directories and settled objects, and
// the object store, against each other. What it finds is looked at once more
// before it is reported, since the constellation may be running; but it lists the
// whole store, and is not for what serves or maintains data (I7).
// With repair what a marker puts right is led to by one: see verify_repair.go.
func (s *Service) VerifyObjects(req *readerpb.VerifyObjectsRequest, srv grpc.ServerStreamingServer[readerpb.VerifyObjectsResponse]) error {
	return s.whileRunning(srv.Context(), func(ctx context.Context) error {
		v := survey{svc: s, repair: req.GetRepair(), deleted: map[stream.ID]bool{}, remedies: map[*novapb.VerifyFinding]remedy{}, send: func(m *novapb.VerifyResponse) error {
			return srv.Send(&readerpb.VerifyObjectsResponse{Progress: m})
		}}
		return v.run(ctx)
	})
}

// survey is one check of the rows and the object store. Rows are read first, the
// store is listed then, and what does not fit is judged again by rows and markers
// that are read after it.
type survey struct {
	svc  *Service
	send func(*novapb.VerifyResponse) error
	// Ids from it on are of what may be under way.
	young   string
	markers markers
	chains  map[string]*surveyed
	order   []*surveyed
	// directories are the objects that rows name, until the list has them.
	directories map[string]*indexpb.Directory
	// deleted are streams whose heads say so, and that no marker seems to lead to.
	deleted map[stream.ID]bool

	suspects []suspect
	// repair: findings are put right, if they have a remedy.
	repair   bool
	remedies map[*novapb.VerifyFinding]remedy
	counted  novapb.VerifyResponse
}

// suspect is something that may be wrong: judged by markers that were read after
// everything that made it one.
type suspect func(ctx context.Context, m *markers) ([]*novapb.VerifyFinding, error)

func finding(kind, format string, args ...any) []*novapb.VerifyFinding {
	return []*novapb.VerifyFinding{{Kind: kind, Message: fmt.Sprintf(format, args...)}}
}

func (v *survey) run(ctx context.Context) error {
	v.young = chain.IDFloor(time.Now().Add(-v.svc.cfg.Young)).String()
	for _, step := range []func(context.Context) error{v.readMarkers, v.readChains, v.list, v.checkStreams, v.checkChains, v.settle, v.deadLetters} {
		if err := step(ctx); err != nil {
			return err
		}
		if err := v.progress(false); err != nil {
			return err
		}
	}
	return v.progress(true)
}

// progress reports what was found since the last report.
func (v *survey) progress(done bool) error {
	m := &novapb.VerifyResponse{Chains: v.counted.GetChains(), Objects: v.counted.GetObjects(), Findings: v.counted.GetFindings(), Done: done}
	v.counted.Findings = nil
	return v.send(m)
}

// doubt judges what may be wrong, and has it judged again later if it seems so.
func (v *survey) doubt(ctx context.Context, s suspect) error {
	found, err := s(ctx, &v.markers)
	clear(v.remedies) // it is judged again first
	if err != nil || len(found) == 0 {
		return err
	}
	v.suspects = append(v.suspects, s)
	if len(v.suspects) < maxSuspects {
		return nil
	}
	return v.settle(ctx)
}

// settle judges again what seemed wrong, and notes what still is.
func (v *survey) settle(ctx context.Context) error {
	if len(v.suspects) == 0 {
		return nil
	}
	if err := v.readMarkers(ctx); err != nil {
		return err
	}
	for _, s := range v.suspects {
		found, err := s(ctx, &v.markers)
		if err != nil {
			return err
		}
		for _, f := range found {
			if err := v.put(ctx, f); err != nil {
				return err
			}
		}
		v.counted.Findings = append(v.counted.Findings, found...)
	}
	v.suspects = nil
	return nil
}

func (v *survey) readMarkers(ctx context.Context) error {
	m, err := v.svc.readMarkers(ctx)
	v.markers = m
	return err
}

// list goes through the object store, in order of keys.
func (v *survey) list(ctx context.Context) error {
	for after := ""; ; {
		page, err := v.svc.objects.List(ctx, "", after, listAtOnce)
		if err != nil {
			return v.svc.storeError(ctx, "the list of objects", err)
		}
		for _, o := range page {
			after = o.Key
			v.counted.Objects++
			if err := v.listed(ctx, o.Key); err != nil {
				return err
			}
		}
		if len(page) < listAtOnce {
			return nil
		}
		if err := v.progress(false); err != nil {
			return err
		}
	}
}

// listed looks at an object by its key.
func (v *survey) listed(ctx context.Context, key string) error {
	parts := strings.Split(key, "/")
	switch kind := parts[0]; {
	case kind == "chain" && len(parts) == 3:
		slot, err := strconv.ParseUint(parts[2], 16, 64)
		if err != nil || len(parts[2]) != 16 {
			break
		}
		if c := v.chains[parts[1]]; c != nil {
			c.meets(slot)
			return nil
		}
		return v.doubt(ctx, v.ofNoChain(key, parts[1]))
	case kind == "directory" && len(parts) == 3:
		if _, named := v.directories[key]; named {
			delete(v.directories, key)
			return nil
		}
		return v.doubt(ctx, v.ofNoDirectory(key, parts[1], parts[2]))
	case (kind == "settled" || kind == "page") && len(parts) == 2:
		if parts[1] >= v.young {
			return nil
		}
		return v.doubt(ctx, v.settledObject(key))
	case kind == "export", kind == "probe":
		return nil // who makes them looks after them
	}
	found := finding("leak", "%s is no object of a constellation", key)
	v.counted.Findings = append(v.counted.Findings, found...)
	return v.put(ctx, found[0])
}

// exists reports whether an object is there.
func (s *Service) exists(ctx context.Context, object string) (bool, error) {
	_, err := s.size(ctx, object)
	switch {
	case reason.Is(err, reason.ObjectNotFound):
		return false, nil
	case err != nil && !isDamaged(err): // an empty one is there
		return false, err
	}
	return true, nil
}

// deadLetters notes work that was set aside because it failed too often.
func (v *survey) deadLetters(ctx context.Context) error {
	for _, queue := range catalog.Queues() {
		n := 0
		err := v.svc.index.EachDue(ctx, catalog.DeadQueue(queue), farFuture(), func(m catalog.Marker) (bool, error) {
			if n++; n > maxSuspects {
				v.counted.Findings = append(v.counted.Findings, finding("dead_letter", "queue %s: there are more", queue)...)
				return false, nil
			}
			v.counted.Findings = append(v.counted.Findings, v.dead(queue, m.Due, finding("dead_letter", "queue %s: %s failed %d times and was set aside: stream %q, chain %q, object %q",
				queue, m.Due.GetDueId(), m.Due.GetAttempts(), m.Due.GetStreamId(), m.Due.GetChainId(), m.Due.GetObject()))...)
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// dead says how such work is taken up again.
func (v *survey) dead(queue string, d *indexpb.Due, found []*novapb.VerifyFinding) []*novapb.VerifyFinding {
	for _, f := range found {
		if v.repair {
			f.Repair = fmt.Sprintf("when its cause is gone, which the reapers' logs tell: nova background revive %s %s", queue, d.GetDueId())
		}
	}
	return found
}
