package catalog

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// markers is an index of due markers. lose makes the reply of the next call of
// a kind be lost.
type markers struct {
	indexpb.IndexServiceClient

	rows    map[string]*indexpb.VersionedDue
	version int64
	lose    string
}

func place(queue string, at int64, id string) string { return fmt.Sprintf("%s/%d-%s", queue, at, id) }

func (m *markers) reply(call string) error {
	if m.lose != call {
		return nil
	}
	m.lose = ""
	return reason.New(codes.Unavailable, reason.StorageDown, "lost")
}

func (m *markers) PutDue(_ context.Context, req *indexpb.PutDueRequest, _ ...grpc.CallOption) (*indexpb.PutDueResponse, error) {
	d := req.GetDue()
	k := place(d.GetQueue(), d.GetAt(), d.GetDueId())
	old := m.rows[k]
	if old.GetDue().GetAttempt() == d.GetAttempt() {
		return &indexpb.PutDueResponse{Version: old.GetVersion()}, nil
	}
	if version := old.GetVersion(); old == nil && req.GetExpectedVersion() != Absent || old != nil && version != req.GetExpectedVersion() {
		return nil, reason.New(codes.Aborted, reason.VersionConflict, "another version")
	}
	m.version++
	m.rows[k] = &indexpb.VersionedDue{Due: d, Version: m.version}
	return &indexpb.PutDueResponse{Version: m.version}, m.reply("put")
}

func (m *markers) DeleteDue(_ context.Context, req *indexpb.DeleteDueRequest, _ ...grpc.CallOption) (*indexpb.DeleteDueResponse, error) {
	k := place(req.GetQueue(), req.GetAt(), req.GetDueId())
	if old := m.rows[k]; old != nil && old.GetVersion() != req.GetExpectedVersion() {
		return nil, reason.New(codes.Aborted, reason.VersionConflict, "another version")
	}
	delete(m.rows, k)
	return &indexpb.DeleteDueResponse{}, m.reply("delete")
}

// only wants one marker and returns it.
func (m *markers) only(t *testing.T) *indexpb.Due {
	t.Helper()
	if len(m.rows) != 1 {
		t.Fatalf("markers %v, want one", m.rows)
	}
	for _, v := range m.rows {
		return v.GetDue()
	}
	return nil
}

// Of several that claim a marker one gets it; it is moved or dropped by that one
// only, and never doubled.
func TestMarkerIsClaimedByOne(t *testing.T) {
	for _, lose := range []string{"", "put", "delete"} {
		m := &markers{rows: map[string]*indexpb.VersionedDue{}}
		c, ctx := New(m), t.Context()
		armed, err := c.ArmDue(ctx, &indexpb.Due{Queue: "q", At: 5})
		if err != nil {
			t.Fatal(err)
		}
		m.lose = lose
		first, err := c.ClaimDue(ctx, armed, time.UnixMilli(100))
		if err != nil || first.Due.GetAttempts() != 1 || first.Due.GetLeasedUntil() != 100 {
			t.Fatalf("%v, %v", first, err)
		}
		if _, err := c.ClaimDue(ctx, armed, time.UnixMilli(200)); !IsConflict(err) {
			t.Fatalf("claimed twice: %v", err)
		}
		if err := c.DropDue(ctx, armed); err != nil {
			t.Fatal(err)
		}
		m.only(t)
		// Its lease ran out, another claimed it, then the first one moves it.
		second, err := c.ClaimDue(ctx, first, time.UnixMilli(200))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.MoveDue(ctx, first, "q", time.UnixMilli(50)); err != nil {
			t.Fatal(err)
		}
		if d := m.only(t); d.GetAt() != 5 || d.GetLeasedUntil() != 200 {
			t.Fatalf("the marker is %v", d)
		}
		if err := c.MoveDue(ctx, second, "dead", time.UnixMilli(60)); err != nil {
			t.Fatal(err)
		}
		if d := m.only(t); d.GetAt() != 60 || d.GetQueue() != "dead" || d.GetLeasedUntil() != 0 || d.GetAttempts() != 2 {
			t.Fatalf("the marker is %v", d)
		}
	}
}

func TestMarkerTellsWhenItWasArmed(t *testing.T) {
	m := &markers{rows: map[string]*indexpb.VersionedDue{}}
	before := time.Now().Add(-time.Millisecond)
	armed, err := New(m).ArmDue(t.Context(), &indexpb.Due{Queue: "q"})
	if at := armed.Armed(); err != nil || at.Before(before) || at.After(time.Now()) {
		t.Fatalf("armed %v, %v", at, err)
	}
	if at := (Marker{Due: &indexpb.Due{DueId: "x"}}).Armed(); !at.IsZero() {
		t.Fatalf("no ulid: %v", at)
	}
}
