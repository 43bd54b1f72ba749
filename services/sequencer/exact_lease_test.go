package sequencer

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
)

// The lease is looked at after the state that is answered was read, while that
// cannot change: looked at before, it may run out, another may lead and append,
// and a request that comes then would be refused by an old state (I4).
func TestLeaseIsLookedAtAfterTheState(t *testing.T) {
	for what, answer := range map[string]func(n *numbering, w waiter){
		"at rest": func(n *numbering, w waiter) { n.settleWith(w) },
		"with a commit": func(n *numbering, w waiter) {
			e := &entry{st: n.st, kind: bundle.KindToken, sent: true}
			n.st.inflight = []*entry{e}
			n.settleWith(w)
			n.st.commit(e, piece{})
		},
	} {
		t.Run(what, func(t *testing.T) {
			looked, outside := 0, 0
			var st *openStream
			now := func() time.Time {
				looked++
				if st.mu.TryLock() {
					outside++
					st.mu.Unlock()
				}
				return time.UnixMilli(1)
			}
			svc := &Service{lease: newLease(time.Hour, false, now)}
			svc.lease.renewed(time.UnixMilli(1))
			st = &openStream{id: stream.NewID(), shard: newShard(svc, 0)}
			w := waiter{req: newRequest(bundle.KindChunk), refusal: reason.New(codes.Aborted, reason.Fenced, "no")}
			answer(&numbering{st: st}, w)
			wantRefusal(t, receive(t, w.req.done).err, reason.Fenced)
			if looked == 0 || outside > 0 {
				t.Errorf("looked at %d times, %d of them while the state could change", looked, outside)
			}
		})
	}
}
