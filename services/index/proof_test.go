package index

import (
	"fmt"
	"testing"

	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// An old read from before a stream was created is found out, if who asks wants
// proof: a stream that is there must not be taken for deleted (I2).
func TestAbsentHeadIsProven(t *testing.T) {
	w, d := unreaped(t)
	s, f := w.process()
	get := func(prove bool) (*indexpb.GetHeadResponse, error) {
		return s.GetHead(t.Context(), &indexpb.GetHeadRequest{StreamId: d.GetStreamId(), ProveAbsence: prove})
	}
	f.Script(fault.Rule{Op: fault.Get, Prefix: "head/", Do: fault.Stale, Times: 2})
	if _, err := get(false); !reason.Is(err, reason.RowNotFound) {
		t.Fatalf("the read is not old: %v", err)
	}
	got, err := get(true)
	if err != nil || got.GetHead().GetStreamId() != d.GetStreamId() {
		t.Fatalf("%v, %v", got, err)
	}
	got.Head.OpenedEpoch, got.Head.Attempt = 1, stream.NewAttemptID().String()
	if _, err := s.PutHead(t.Context(), &indexpb.PutHeadRequest{Head: got.GetHead(), ExpectedVersion: got.GetVersion()}); err != nil {
		t.Fatalf("the version that came with it: %v", err)
	}
}

// What proves an absence leaves nothing, and is no head to anybody if it stayed
// because its maker died.
func TestPlaceHolderIsNoHead(t *testing.T) {
	for _, stays := range []bool{false, true} {
		t.Run(fmt.Sprint("it stays ", stays), func(t *testing.T) {
			w := newWorld(t)
			id := stream.NewID().String()
			s, f := w.process()
			if stays {
				f.Script(fault.Rule{Op: fault.Delete, Prefix: "head/", Do: fault.FailBefore})
			}
			_, err := s.GetHead(t.Context(), &indexpb.GetHeadRequest{StreamId: id, ProveAbsence: true})
			if !stays && !reason.Is(err, reason.RowNotFound) || stays && err == nil {
				t.Fatal(err)
			}
			if w.exists(headKey(id)) != stays {
				t.Fatalf("a row is there: %v", !stays)
			}
			s, _ = w.process()
			for _, prove := range []bool{false, true, true} {
				if h, err := s.GetHead(t.Context(), &indexpb.GetHeadRequest{StreamId: id, ProveAbsence: prove}); !reason.Is(err, reason.RowNotFound) {
					t.Fatalf("%v, %v", h, err)
				}
			}
			if w.exists(headKey(id)) {
				t.Error("the place-holder stays for ever (I11)")
			}
		})
	}
}

// Settings that are asked for fresh are those of the last change (I6).
func TestFreshDescriptorIsNoOldRead(t *testing.T) {
	w, d := unreaped(t)
	s, f := w.process()
	if _, err := s.UpdateStream(t.Context(), &indexpb.UpdateStreamRequest{Bucket: "bucket", Stream: "s", Config: &novapb.StreamConfig{
		Timestamping: novapb.TimestampingMode_TIMESTAMPING_MODE_ARRIVAL,
	}}); err != nil {
		t.Fatal(err)
	}
	f.Script(fault.Rule{Op: fault.Get, Prefix: "descriptor/", Do: fault.Stale, Times: 2})
	get := func(fresh bool) novapb.TimestampingMode {
		t.Helper()
		got, err := s.GetDescriptor(t.Context(), &indexpb.GetDescriptorRequest{StreamId: d.GetStreamId(), Fresh: fresh})
		if err != nil {
			t.Fatal(err)
		}
		return got.GetStream().GetConfig().GetTimestamping()
	}
	if get(false) == novapb.TimestampingMode_TIMESTAMPING_MODE_ARRIVAL {
		t.Fatal("the read is not old")
	}
	if got := get(true); got != novapb.TimestampingMode_TIMESTAMPING_MODE_ARRIVAL {
		t.Errorf("settings from before the last change: %v", got)
	}
}

// A quarantine stops folds and keeps its pins, until it is lifted (I2, I11).
func TestQuarantineHoldsUntilItIsLifted(t *testing.T) {
	pin := func(chain string, from, to uint64) *indexpb.Pin {
		return &indexpb.Pin{ChainId: chain, From: from, To: to}
	}
	sound := &indexpb.Head{FoldedEpoch: 3, FoldedEntry: 10, Tail: 100}
	broken := &indexpb.Head{FoldedEpoch: 3, FoldedEntry: 10, Tail: 100, Quarantine: "gap", Pins: []*indexpb.Pin{pin("c", 5, 7)}}
	type edit = func(*indexpb.Head)
	for _, c := range []struct {
		what string
		old  *indexpb.Head
		f    edit
		ok   bool
	}{
		{"it begins", sound, func(h *indexpb.Head) { h.Quarantine, h.Pins = "gap", []*indexpb.Pin{pin("c", 5, 7)} }, true},
		{"it names no slot", sound, func(h *indexpb.Head) { h.Quarantine = "gap" }, false},
		{"an empty pin", sound, func(h *indexpb.Head) { h.Quarantine, h.Pins = "gap", []*indexpb.Pin{pin("c", 5, 5)} }, false},
		{"a pin of no chain", sound, func(h *indexpb.Head) { h.Quarantine, h.Pins = "gap", []*indexpb.Pin{pin("", 5, 6)} }, false},
		{"too many pins (I8)", sound, func(h *indexpb.Head) {
			for i := range uint64(MaxPins + 1) {
				h.Pins = append(h.Pins, pin("c", i, i+1))
			}
			h.Quarantine = "gap"
		}, false},
		{"pins without it", sound, func(h *indexpb.Head) { h.Pins = []*indexpb.Pin{pin("c", 5, 7)} }, false},
		{"it begins with a fold", sound, func(h *indexpb.Head) { h.Quarantine, h.Pins, h.FoldedEntry = "gap", []*indexpb.Pin{pin("c", 5, 7)}, 11 }, false},
		{"a leader touches it", broken, func(h *indexpb.Head) { h.OpenedEpoch = 9 }, true},
		{"another pin", broken, func(h *indexpb.Head) { h.Pins = append(h.Pins, pin("d", 1, 2)) }, true},
		{"a wider pin", broken, func(h *indexpb.Head) { h.Pins = []*indexpb.Pin{pin("c", 4, 7)} }, true},
		{"a pin is lost", broken, func(h *indexpb.Head) { h.Pins = []*indexpb.Pin{pin("d", 5, 7)} }, false},
		{"a pin shrinks", broken, func(h *indexpb.Head) { h.Pins = []*indexpb.Pin{pin("c", 6, 7)} }, false},
		{"an entry is folded", broken, func(h *indexpb.Head) { h.FoldedEntry = 11 }, false},
		{"it is lifted", broken, func(h *indexpb.Head) { h.Quarantine, h.Pins = "", nil }, true},
		{"it is lifted with a fold", broken, func(h *indexpb.Head) {
			h.Quarantine, h.Pins, h.FoldedEntry, h.Tail, h.Refs = "", nil, 11, 101, []*indexpb.Ref{{Object: "o", FirstSeq: 100, NextSeq: 101}}
		}, true},
	} {
		t.Run(c.what, func(t *testing.T) { judge(t, headRule(c.old, changed(c.old, c.f), true), c.ok) })
	}
}
