package catalog

import (
	"context"
	"time"

	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// QueueCompact holds the markers of settled objects of which most is dead: object. They
// are armed before the change of the row that makes it so.
const QueueCompact = "compact"

// MinDead is how many bytes of a settled object are dead at least when it is compacted:
// what is copied, and what the marker and the rows cost, are not worth fewer.
const MinDead = 64 << 10

// ClearRun clears the bit of a run in the row of a settled object and takes the run's
// bytes (settled.RunBytes) from live_bytes. 0: they are not known, and then live_bytes
// are not any more. A bit that is cleared already changes nothing.
func ClearRun(r *indexpb.SettledObject, run uint32, bytes uint64) {
	live := settled.Live(r.GetLive())
	if !live.Has(run) {
		return
	}
	live.Clear(run)
	if bytes == 0 || bytes > r.GetLiveBytes() || !live.Any() {
		r.LiveBytes = 0
		return
	}
	r.LiveBytes -= bytes
}

// MostlyDead reports whether heads may name some runs of an object of several, and
// these take less than half of it, and MinDead less; of an object whose live bytes are
// not known, whether that may be so.
func MostlyDead(r *indexpb.SettledObject) bool {
	if r.GetRuns() < 2 || r.GetSize() < MinDead || !settled.Live(r.GetLive()).Any() {
		return false
	}
	live := r.GetLiveBytes()
	return live == 0 || 2*live < r.GetSize() && live+MinDead <= r.GetSize()
}

// ToCompact reports whether a change of an object's row is to be preceded by a marker
// of QueueCompact: it makes the object one that is mostly dead, or it is not known
// whether it was before.
func ToCompact(before, after *indexpb.SettledObject) bool {
	return MostlyDead(after) && (before.GetLiveBytes() == 0 || !MostlyDead(before))
}

// ArmCompact arms the marker of an object that is to be compacted.
func (c *Client) ArmCompact(ctx context.Context, object string, at time.Time) error {
	_, err := c.ArmDue(ctx, &indexpb.Due{Queue: QueueCompact, At: at.UnixMilli(), Object: object})
	return err
}
