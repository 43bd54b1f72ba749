package reaper

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// outage is a cache that reaches no object store.
type outage struct {
	cachepb.CacheServiceClient
	deletes *int
}

func (o outage) DeleteObjects(context.Context, *cachepb.DeleteObjectsRequest, ...grpc.CallOption) (*cachepb.DeleteObjectsResponse, error) {
	*o.deletes++
	return nil, errDown
}

// limits makes settings: milliseconds, bytes, milliseconds; 0: none.
func limits(age int64, bytes uint64, empty int64) *novapb.StreamConfig {
	c := &novapb.StreamConfig{}
	c.RetentionAgeMsPresence = &novapb.StreamConfig_RetentionAgeMs{RetentionAgeMs: age}
	c.RetentionBytesPresence = &novapb.StreamConfig_RetentionBytes{RetentionBytes: bytes}
	c.DeleteOnEmptyMsPresence = &novapb.StreamConfig_DeleteOnEmptyMs{DeleteOnEmptyMs: empty}
	return c
}

// led is the leader of one stream.
type led struct {
	id         stream.ID
	trim, tail uint64
	trims      []uint64
	deleted    bool
	refuse     error
	asked      int
}

func (l *led) answer(method string, req, res proto.Message) error {
	l.asked++
	key := req.(interface{ GetStream() *sequencerpb.StreamKey }).GetStream()
	if key.GetStreamId() != l.id.String() || l.deleted {
		return reason.New(codes.NotFound, reason.StreamNotFound, "no such stream")
	}
	if l.refuse != nil {
		return l.refuse
	}
	switch r := req.(type) {
	case *sequencerpb.TrimStreamRequest:
		l.trims = append(l.trims, r.GetTo())
		l.trim = max(l.trim, min(r.GetTo(), l.tail))
		proto.Merge(res, &sequencerpb.TrimStreamResponse{Trim: l.trim})
	case *sequencerpb.GetStateRequest:
		proto.Merge(res, &sequencerpb.GetStateResponse{State: &sequencerpb.StreamState{Trim: l.trim, Tail: l.tail}})
	case *sequencerpb.DeleteStreamRequest:
		if r.GetIfEmptyAtPresence() == nil || r.GetArmed() {
			return fmt.Errorf("a delete whatever happens: %v", r)
		}
		if l.trim < l.tail || r.GetIfEmptyAt() != l.tail {
			return reason.New(codes.FailedPrecondition, reason.SeqMismatch, "it is not empty")
		}
		l.deleted = true
	default:
		return fmt.Errorf("unexpected %s", method)
	}
	return nil
}

// retained makes a stream with settings, whose marker is due.
func (f *farm) retained(c *novapb.StreamConfig) (stream.ID, *led) {
	f.t.Helper()
	id := f.stream(c)
	f.pass(time.Minute)
	l := &led{id: id}
	f.leader = l.answer
	return id, l
}

// runs settles runs of one record each at these times.
func (f *farm) runs(id stream.ID, l *led, at ...time.Time) {
	f.t.Helper()
	for _, t := range at {
		r := f.object(run{id, l.tail, l.tail + 1, t.UnixMilli(), 0})
		f.adopted(r[0].GetObject())
		f.add(id, r[0])
		l.tail++
	}
}

// next is when the stream's marker is due.
func (f *farm) nextLook() time.Duration {
	f.t.Helper()
	q := f.queue(queueRetention)
	if len(q) != 1 {
		f.t.Fatalf("markers %v", q)
	}
	return time.UnixMilli(q[0].Due.GetAt()).Sub(f.clock().Truncate(time.Millisecond))
}

// Records expire ref by ref, when the last of a ref is too old, and are looked at
// again when the next one does.
func TestOldRecordsAreTrimmedByTheLeader(t *testing.T) {
	f := newFarm(t)
	id, l := f.retained(limits(time.Hour.Milliseconds(), 0, 0))
	now := f.clock()
	f.runs(id, l, now.Add(-3*time.Hour), now.Add(-2*time.Hour), now.Add(-50*time.Minute), now)
	s := f.process(Config{}).Service
	drain(t, s, 0, 1)
	if l.trim != 2 {
		t.Fatalf("trimmed to %d", l.trim)
	}
	if got := f.nextLook(); got < 10*time.Minute || got > 10*time.Minute+time.Second {
		t.Fatalf("next look in %v", got)
	}
	f.pass(11 * time.Minute)
	drain(t, s, 0, 1)
	if l.trim != 3 {
		t.Fatalf("trimmed to %d", l.trim)
	}
	// All that is settled expires; what is not settled does not.
	l.tail = 9
	f.pass(2 * time.Hour)
	drain(t, s, 0, 1)
	if l.trim != 4 {
		t.Fatalf("trimmed to %d", l.trim)
	}
	// The leader is asked only if the trim moves.
	f.head(id, func(h *indexpb.Head) { h.Trim = 4 })
	asked := l.asked
	f.pass(7 * time.Hour)
	drain(t, s, 0, 1)
	if l.asked != asked {
		t.Fatal("the leader is asked for what is done")
	}
	if got := f.nextLook(); got != time.Hour {
		t.Fatalf("next look in %v", got)
	}
}

// The newest bytes are kept, through pages too.
func TestBytesBeyondTheLimitAreTrimmed(t *testing.T) {
	f := newFarm(t)
	id, l := f.retained(nil)
	at := make([]time.Time, 150)
	for i := range at {
		at[i] = f.clock()
	}
	f.runs(id, l, at...)
	h, _, err := f.index.GetHead(t.Context(), id)
	f.must(err)
	if len(h.GetPages()) == 0 {
		t.Fatal("there are no pages")
	}
	size := h.GetRefs()[0].GetLength()
	s := f.process(Config{}).Service
	for _, c := range []struct{ limit, want uint64 }{
		{150 * size, 0}, {150*size - 1, 0}, {149 * size, 1}, {149*size + 1, 0}, {120 * size, 30}, {100*size + 1, 49}, {33 * size, 117}, {1, 149},
	} {
		got, err := s.beyond(t.Context(), id, h, c.limit)
		if err != nil || got != c.want {
			t.Errorf("limit %d bytes of %d: %d, %v; want %d", c.limit, 150*size, got, err, c.want)
		}
	}
	f.settings(id, limits(0, 100*size, 0))
	drain(t, s, 0, 1)
	if l.trim != 50 {
		t.Fatalf("trimmed to %d", l.trim)
	}
}

// settings changes a stream's.
func (f *farm) settings(id stream.ID, c *novapb.StreamConfig) {
	f.t.Helper()
	d, err := f.index.GetDescriptor(f.t.Context(), id)
	f.must(err)
	_, err = f.raw.UpdateStream(f.t.Context(), &indexpb.UpdateStreamRequest{Bucket: "bucket", Stream: d.GetName(), Config: c, StreamId: id.String()})
	f.must(err)
	f.pass(time.Minute)
}

// A stream that has no limits any more is not looked at again, and whoever is about
// to set one fails and arms again.
func TestStreamWithoutLimitsIsLeftAlone(t *testing.T) {
	f := newFarm(t)
	id, _ := f.retained(limits(1000, 0, 0))
	f.settings(id, limits(0, 0, 0))
	before, err := f.index.GetDescriptor(t.Context(), id)
	f.must(err)
	drain(t, f.process(Config{}).Service, 1, 0)
	after, err := f.index.GetDescriptor(t.Context(), id)
	if err != nil || before.GetAttempt() == after.GetAttempt() || len(f.queue(queueRetention)) != 0 {
		t.Fatalf("%v, %v, markers %v", after, err, f.queue(queueRetention))
	}
}

// Of a stream's markers the one that its descriptor names stays.
func TestMarkerThatTheDescriptorDoesNotNameGoes(t *testing.T) {
	f := newFarm(t)
	id, _ := f.retained(limits(1000, 0, 0))
	f.arm(&indexpb.Due{Queue: queueRetention, StreamId: id.String()})
	drain(t, f.process(Config{}).Service, 1, 1)
	d, err := f.index.GetDescriptor(t.Context(), id)
	if q := f.queue(queueRetention); err != nil || len(q) != 1 || q[0].Due.GetDueId() != d.GetRetentionMarker() {
		t.Fatalf("markers %v of %v, %v", q, d, err)
	}
}

// The marker of a stream that is deleted does nothing, whatever has its name by
// then (C8).
func TestRetentionOfADeletedStreamEnds(t *testing.T) {
	f := newFarm(t)
	id, l := f.retained(limits(1000, 0, 1000))
	f.runs(id, l, f.clock().Add(-time.Hour))
	l.deleted = true
	s := f.process(Config{}).Service
	drain(t, s, 1, 0) // the leader says so
	f.arm(&indexpb.Due{Queue: queueRetention, StreamId: id.String()})
	f.head(id, func(h *indexpb.Head) { h.State = deletedState })
	drain(t, s, 1, 0) // the head does
	f.arm(&indexpb.Due{Queue: queueRetention, StreamId: stream.NewID().String(), Bucket: "bucket", Name: "s1"})
	drain(t, s, 0, 1) // it may be about to be made
	f.pass(2 * time.Hour)
	drain(t, s, 1, 0)
	if l.asked != 1 || len(l.trims) != 0 || len(f.queue("delete")) != 0 {
		t.Fatalf("the leader was asked %d times, markers %v", l.asked, f.queue("delete"))
	}
}

// A leader that dies between the delete of an empty stream and the marker of what
// it leaves is asked again; or the head, once that tells, arms it.
func TestDeleteOfAnEmptyStreamWhoseReplyIsLostIsFinished(t *testing.T) {
	for _, settled := range []bool{false, true} {
		f := newFarm(t)
		id, l := f.retained(limits(0, 0, time.Minute.Milliseconds()))
		s := f.process(Config{}).Service
		drain(t, s, 0, 1)
		f.pass(2 * time.Minute)
		answer, again := f.leader, 0
		f.leader = func(method string, req, res proto.Message) error {
			if method == "DeleteStream" && l.deleted {
				again++
				return nil
			}
			if err := answer(method, req, res); err != nil || method != "DeleteStream" {
				return err
			}
			return errDown
		}
		drain(t, s, 0, 1)
		if !l.deleted || len(f.queue(queueRetention)) != 1 {
			t.Fatalf("deleted: %v, markers %v", l.deleted, f.queue(queueRetention))
		}
		if settled {
			f.head(id, func(h *indexpb.Head) { h.State = deletedState })
		}
		f.pass(time.Hour)
		drainAll(t, s)
		if left := len(f.queue("delete")); len(f.queue(queueRetention)) != 0 || settled && left != 1 || !settled && again != 1 {
			t.Fatalf("settled: %v, asked again %d times, %d markers", settled, again, left)
		}
	}
}

// A stream is deleted when it has been empty at one tail for long enough; one that
// got a record lives (C9).
func TestStreamThatIsEmptyForLongIsDeleted(t *testing.T) {
	f := newFarm(t)
	_, l := f.retained(limits(0, 0, (30 * time.Minute).Milliseconds()))
	s := f.process(Config{}).Service
	look := func(after time.Duration, lives bool) {
		t.Helper()
		f.pass(after)
		drainAll(t, s)
		if l.deleted == lives {
			t.Fatalf("deleted: %v", l.deleted)
		}
	}
	look(0, true)
	look(29*time.Minute, true)
	l.tail, l.trim = 1, 1 // a record came and was trimmed
	look(2*time.Minute, true)
	look(29*time.Minute, true)
	l.tail = 2 // one came, and is not settled
	look(2*time.Minute, true)
	l.trim = 2
	look(31*time.Minute, true)
	look(31*time.Minute, false)
	if len(f.queue(queueRetention)) != 0 {
		t.Fatal("the marker stays")
	}
}

// An append between the last look and the delete wins (C9).
func TestAppendBeforeTheDeleteOfAnEmptyStreamWins(t *testing.T) {
	f := newFarm(t)
	_, l := f.retained(limits(0, 0, time.Minute.Milliseconds()))
	s := f.process(Config{}).Service
	drainAll(t, s)
	f.pass(2 * time.Minute)
	answer := f.leader
	f.leader = func(method string, req, res proto.Message) error {
		if method == "DeleteStream" {
			l.tail++
		}
		return answer(method, req, res)
	}
	drain(t, s, 0, 1)
	if q := f.queue(queueRetention); l.deleted || len(q) != 1 || q[0].Due.GetNumber() != 0 || q[0].Due.GetSince() != 0 {
		t.Fatalf("deleted: %v, markers %v", l.deleted, q)
	}
}

// Settings that are an old read trim nothing.
func TestOldSettingsTrimNothing(t *testing.T) {
	f := newFarm(t)
	now := f.clock()
	id, l := f.retained(limits(time.Hour.Milliseconds(), 0, 0))
	f.runs(id, l, now.Add(-2*time.Hour), now)
	f.settings(id, limits(24*time.Hour.Milliseconds(), 0, 0))
	s := f.process(Config{})
	s.rows.Script(stale("descriptor/", 1))
	drain(t, s.Service, 0, 1)
	if len(l.trims) != 0 {
		t.Fatalf("trimmed to %v", l.trims)
	}
}

// What cannot be done now is no failure of the marker.
func TestQuarantinedStreamIsLookedAtLater(t *testing.T) {
	f := newFarm(t)
	now := f.clock()
	id, l := f.retained(limits(1000, 0, 0))
	f.runs(id, l, now.Add(-time.Hour))
	l.refuse = reason.New(codes.DataLoss, reason.StreamQuarantine, "quarantined")
	drain(t, f.process(Config{}).Service, 0, 1)
	if q := f.queue(queueRetention); len(q) != 1 || q[0].Due.GetAttempts() != 0 || f.nextLook() != looksAtLeast {
		t.Fatalf("markers %v", q)
	}
}
