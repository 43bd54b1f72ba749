package sequencer

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// control calls f without waiting, and returns once its entry is under way.
func (l *leader) control(d *indexpb.StreamDescriptor, f func() error) <-chan error {
	l.w.t.Helper()
	before, _ := l.inflight(d)
	out := make(chan error, 1)
	go func() { out <- f() }()
	eventually(l.w.t, "the entry is under way", func() bool { now, _ := l.inflight(d); return now > before || len(out) > 0 })
	return out
}

func (l *leader) trim(d *indexpb.StreamDescriptor, seq uint64) (*novapb.TrimResponse, error) {
	return l.Trim(l.w.t.Context(), &novapb.TrimRequest{Bucket: "bucket", Stream: d.GetName(), Seq: seq})
}

func (l *leader) seal(d *indexpb.StreamDescriptor) (*novapb.SealStreamResponse, error) {
	return l.SealStream(l.w.t.Context(), &novapb.SealStreamRequest{Bucket: "bucket", Stream: d.GetName()})
}

func (l *leader) delete(d *indexpb.StreamDescriptor) error {
	_, err := l.DeleteStream(l.w.t.Context(), &sequencerpb.DeleteStreamRequest{Stream: key(d), Bucket: "bucket", Name: d.GetName()})
	return err
}

// Control is written among the appends: its order is the chain's.
func TestControlHasItsPlaceAmongAppends(t *testing.T) {
	const chunk, trim, seal = chainwriterpb.EntryKind_ENTRY_KIND_CHUNK, chainwriterpb.EntryKind_ENTRY_KIND_TRIM, chainwriterpb.EntryKind_ENTRY_KIND_SEAL
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	l.append(batch(d, "a"), 0, 1)
	w.writer.script(always(hold))
	b := l.pending(batch(d, "b"))
	// The trim may reach what is only under way, and no further.
	trimmed := l.control(d, func() error { _, err := l.trim(d, 2); return err })
	beyond := make(chan error, 1)
	go func() { _, err := l.trim(d, 3); beyond <- err }()
	eventually(t, "the refusal waits", func() bool { _, waits := l.inflight(d); return waits == 3 || len(beyond) > 0 })
	silent(t, "a trim beyond the tail", beyond)
	c := l.pending(batch(d, "c"))
	sealed := l.control(d, func() error { _, err := l.seal(d); return err })
	late := l.begin(t.Context(), batch(d, "x"))
	eventually(t, "the late append waits", func() bool { _, waits := l.inflight(d); return waits == 6 || len(late) > 0 })
	silent(t, "an append behind the seal", late)
	if first := l.state(d).GetTrim(); first != 0 {
		t.Errorf("trimmed to %d before it was committed", first)
	}
	w.writer.release()
	wantAck(t, receive(t, b), 1, 2)
	wantAck(t, receive(t, c), 2, 3)
	if err := receive(t, trimmed); err != nil {
		t.Error(err)
	}
	wantRefusal(t, receive(t, beyond), reason.BeyondTail)
	if err := receive(t, sealed); err != nil {
		t.Error(err)
	}
	wantRefusal(t, receive(t, late).err, reason.StreamSealed)
	var kinds []chainwriterpb.EntryKind
	for _, e := range w.writer.landed() {
		kinds = append(kinds, e.GetKind())
	}
	if want := []chainwriterpb.EntryKind{chunk, chunk, trim, chunk, seal}; !slices.Equal(kinds, want) {
		t.Errorf("entries %v, want %v", kinds, want)
	}
	if st := l.state(d); st.GetTrim() != 2 || st.GetTail() != 3 || !st.GetSealed() {
		t.Errorf("state %v", st)
	}
	// Repeats change nothing and write nothing.
	if res, err := l.trim(d, 1); err != nil || res.GetFirstSeq() != 2 {
		t.Errorf("a lower trim: %v, %v", res, err)
	}
	if res, err := l.seal(d); err != nil || res.GetTail() != 3 {
		t.Errorf("sealed again: %v, %v", res, err)
	}
	if n := len(w.writer.landed()); n != 5 {
		t.Errorf("%d entries", n)
	}
}

func TestAppendThatSealsIsTheLast(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	w.writer.script(always(hold))
	last := batch(d, "a")
	last.Seal = true
	a := l.pending(last)
	late := l.begin(t.Context(), batch(d, "x"))
	eventually(t, "the late append waits", func() bool { _, waits := l.inflight(d); return waits == 2 || len(late) > 0 })
	silent(t, "an append behind the seal", late)
	w.writer.release()
	wantAck(t, receive(t, a), 0, 1)
	wantRefusal(t, receive(t, late).err, reason.StreamSealed)
	empty := &novapb.AppendRequest{Bucket: "bucket", Stream: d.GetName(), Seal: true, MatchSeqPresence: &novapb.AppendRequest_MatchSeq{MatchSeq: 7}}
	l.append(empty, 1, 1) // it is sealed already
	w.wantStored(d, "a")
}

// A name is free only once the DELETE entry is committed (I2), and then means
// nothing, or another stream.
func TestDeleteCommitsBeforeTheNameIsFree(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	l.append(batch(d, "a"), 0, 1)
	w.writer.script(always(hold))
	pending := l.pending(batch(d, "b"))
	deleted := l.control(d, func() error { return l.delete(d) })
	late := l.begin(t.Context(), batch(d, "x"))
	eventually(t, "the late append waits", func() bool { _, waits := l.inflight(d); return waits == 3 || len(late) > 0 })
	silent(t, "an append behind the delete", late)
	silent(t, "the delete", deleted)
	if _, err := w.index.ResolveStream(t.Context(), &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: d.GetName()}); err != nil {
		t.Fatalf("the name is free before the stream is deleted: %v", err)
	}
	w.writer.release()
	wantAck(t, receive(t, pending), 1, 2)
	wantRefusal(t, receive(t, late).err, reason.StreamNotFound)
	if err := receive(t, deleted); err != nil {
		t.Fatal(err)
	}
	if _, err := l.GetState(t.Context(), &sequencerpb.GetStateRequest{Stream: key(d)}); !reason.Is(err, reason.StreamNotFound) {
		t.Errorf("state of a deleted stream: %v", err)
	}
	_, err := l.Append(t.Context(), batch(d, "x"))
	wantRefusal(t, err, reason.StreamNotFound)
	again, err := w.index.CreateStream(t.Context(), &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: d.GetName()})
	if err != nil {
		t.Fatal(err)
	}
	l.append(batch(again.GetStream(), "new"), 0, 1)
	// A delete that comes again does not touch the new one.
	if err := l.delete(d); err != nil {
		t.Error(err)
	}
	l.append(batch(again.GetStream(), "newer"), 1, 2)
	w.wantStored(d, "a", "b")
	w.wantStored(again.GetStream(), "new", "newer")
}

// A trim by the stream's id is a trim; beyond the tail it is the tail.
func TestTrimStreamIsClampedToTheTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{})
		d := w.stream(nil)
		for i := range uint64(3) {
			l.append(batch(d, "x"), i, i+1)
		}
		trim := func(to, want uint64) {
			t.Helper()
			res, err := l.TrimStream(t.Context(), &sequencerpb.TrimStreamRequest{Stream: key(d), To: to})
			if err != nil || res.GetTrim() != want || l.state(d).GetTrim() != want {
				t.Errorf("trimmed to %d: %v, %v; want %d", to, res, err, want)
			}
		}
		trim(2, 2)
		trim(1, 2)
		trim(99, 3)
		trim(99, 3)
		// What is on its way counts: the trim comes behind it.
		w.writer.script(always(hold))
		a := l.pending(batch(d, "x"))
		trimmed := l.control(d, func() error {
			res, err := l.TrimStream(t.Context(), &sequencerpb.TrimStreamRequest{Stream: key(d), To: 99})
			if err == nil && res.GetTrim() != 4 {
				t.Errorf("trimmed to %v", res)
			}
			return err
		})
		synctest.Wait()
		silent(t, "the trim", trimmed)
		w.writer.release()
		wantAck(t, receive(t, a), 3, 4)
		if err := receive(t, trimmed); err != nil {
			t.Error(err)
		}
		if err := l.delete(d); err != nil {
			t.Fatal(err)
		}
		if _, err := l.TrimStream(t.Context(), &sequencerpb.TrimStreamRequest{Stream: key(d)}); !reason.Is(err, reason.StreamNotFound) {
			t.Errorf("a deleted stream: %v", err)
		}
		l.stop()
	})
}
