package index

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func age(ms int64) *novapb.StreamConfig {
	return &novapb.StreamConfig{RetentionAgeMsPresence: &novapb.StreamConfig_RetentionAgeMs{RetentionAgeMs: ms}}
}

func size(n uint64) *novapb.StreamConfig {
	return &novapb.StreamConfig{RetentionBytesPresence: &novapb.StreamConfig_RetentionBytes{RetentionBytes: n}}
}

func whenEmpty(ms int64) *novapb.StreamConfig {
	return &novapb.StreamConfig{DeleteOnEmptyMsPresence: &novapb.StreamConfig_DeleteOnEmptyMs{DeleteOnEmptyMs: ms}}
}

// retain does what a worker does with every marker of the queue, due or not.
func retain(ctx context.Context, s *Service) error {
	due, err := s.ListDue(ctx, &indexpb.ListDueRequest{Queue: QueueRetention, Until: 1 << 40, Limit: 1000})
	if err != nil {
		return err
	}
	for _, v := range due.GetDue() {
		m := v.GetDue()
		keep := false
		for _, fresh := range []bool{false, true} {
			res, err := s.GetDescriptor(ctx, &indexpb.GetDescriptorRequest{StreamId: m.GetStreamId(), Fresh: fresh})
			if reason.Is(err, reason.RowNotFound) {
				_, err = s.GetHead(ctx, &indexpb.GetHeadRequest{StreamId: m.GetStreamId(), ProveAbsence: true})
				if keep = err == nil; keep || !reason.Is(err, reason.RowNotFound) {
					break
				}
				continue
			}
			if err != nil {
				return err
			}
			d := res.GetStream()
			if keep = d.GetUnfinished() || limited(d.GetConfig()) && d.GetRetentionMarker() == m.GetDueId(); keep {
				break
			}
		}
		if keep {
			continue
		}
		if _, err := s.DeleteDue(ctx, &indexpb.DeleteDueRequest{Queue: m.GetQueue(), At: m.GetAt(), DueId: m.GetDueId(), ExpectedVersion: v.GetVersion()}); err != nil {
			return err
		}
	}
	return nil
}

// wantMarked checks that a stream has its marker if it has limits, and, after the
// worker's turn, that there is no other.
func (w *world) wantMarked(t *testing.T, id string) {
	t.Helper()
	s, _ := w.process()
	for _, turn := range []bool{false, true} {
		if turn {
			if err := retain(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		due, err := s.ListDue(t.Context(), &indexpb.ListDueRequest{Queue: QueueRetention, Until: 1 << 40, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		res, err := s.GetDescriptor(t.Context(), &indexpb.GetDescriptorRequest{StreamId: id})
		if err != nil {
			t.Fatal(err)
		}
		d := res.GetStream()
		named, others := 0, 0
		for _, v := range due.GetDue() {
			if v.GetDue().GetStreamId() == id && v.GetDue().GetDueId() != d.GetRetentionMarker() {
				others++
			}
			if m := v.GetDue(); m.GetDueId() == d.GetRetentionMarker() && m.GetStreamId() == id && m.GetBucket() == d.GetBucket() && m.GetName() == d.GetName() && m.GetBucketId() == d.GetBucketId() {
				named++
			}
		}
		if limited(d.GetConfig()) && named != 1 || turn && !limited(d.GetConfig()) && named != 0 {
			t.Fatalf("turn %v: %d markers of %v are the stream's: %v", turn, named, due.GetDue(), d)
		}
		if turn && others > 0 {
			t.Fatalf("markers of the stream are left that are not its (I11): %v", due.GetDue())
		}
	}
}

// A stream with limits has a marker that leads to it, wherever the limits come
// from; one without has none.
func TestStreamWithLimitsHasAMarker(t *testing.T) {
	for _, c := range []struct {
		what                      string
		defaults, config, changed *novapb.StreamConfig
		markers                   int // before the worker's turn
	}{
		{"no limits", nil, nil, nil, 0},
		{"age", nil, age(5), nil, 1},
		{"bytes", nil, size(5), nil, 1},
		{"empty", nil, whenEmpty(5), nil, 1},
		{"the bucket's", age(5), nil, nil, 1},
		{"not the bucket's", age(5), age(0), nil, 0},
		{"limits later", nil, nil, age(5), 1},
		{"other limits later", nil, age(5), age(6), 1},
		{"more limits later", nil, age(5), size(6), 1},
		{"no limits later", nil, age(5), age(0), 1},
		{"something else changes", nil, age(5), &novapb.StreamConfig{Timestamping: novapb.TimestampingMode_TIMESTAMPING_MODE_ARRIVAL}, 1},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t)
			s, _ := w.process()
			ctx := t.Context()
			if _, err := s.CreateBucket(ctx, &indexpb.CreateBucketRequest{Bucket: "bucket", Config: &novapb.BucketConfig{DefaultStreamConfig: c.defaults}}); err != nil {
				t.Fatal(err)
			}
			res, err := s.CreateStream(ctx, &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: "s", Config: c.config})
			if err != nil {
				t.Fatal(err)
			}
			if c.changed != nil {
				if _, err := s.UpdateStream(ctx, &indexpb.UpdateStreamRequest{Bucket: "bucket", Stream: "s", Config: c.changed}); err != nil {
					t.Fatal(err)
				}
			}
			if n := w.markers(QueueRetention); n != c.markers {
				t.Errorf("%d markers, want %d", n, c.markers)
			}
			w.wantMarked(t, res.GetStream().GetStreamId())
		})
	}
}

// Wherever a creation or a change dies, and whichever reply is lost, no stream
// with limits is without its marker, and no marker stays that is no stream's (I11).
func TestMarkerOfLimitsSurvivesEveryCrash(t *testing.T) {
	for what, work := range map[string]func(s *Service) error{
		"create": func(s *Service) error {
			_, err := s.CreateStream(context.Background(), &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: "s", Config: age(5)})
			return err
		},
		"limits are put": func(s *Service) error {
			_, err := s.UpdateStream(context.Background(), &indexpb.UpdateStreamRequest{Bucket: "bucket", Stream: "t", Config: age(5)})
			return err
		},
		"limits are lifted and put": func(s *Service) error {
			for _, ms := range []int64{5, 0, 6} {
				if _, err := s.UpdateStream(context.Background(), &indexpb.UpdateStreamRequest{Bucket: "bucket", Stream: "t", Config: age(ms)}); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		for _, when := range []fault.When{fault.Before, fault.After} {
			for calls := 1; ; calls++ {
				w := newWorld(t)
				w.bucket("bucket")
				s, _ := w.process()
				d, err := create(t.Context(), s, "bucket", "t")
				if err != nil {
					t.Fatal(err)
				}
				dying, f := w.process()
				f.KillAt(calls, when)
				err = work(dying)
				w.wantMarked(t, d.GetStreamId())
				if what == "create" {
					w.reap()
					if found, err := s.ResolveStream(t.Context(), &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: "s"}); err == nil {
						w.wantMarked(t, found.GetStream().GetStreamId())
					} else if err := retain(t.Context(), s); err != nil || w.markers(QueueRetention) != 0 {
						t.Fatalf("%s, %v call %d: markers of no stream are left (I11), %v", what, when, calls, err)
					}
				}
				if err == nil {
					break
				}
				if again := work(s); again != nil {
					t.Fatalf("%s, again after a crash %v call %d: %v", what, when, calls, again)
				}
				w.wantMarked(t, d.GetStreamId())
			}
		}
	}
}

// A worker that drops markers, and changes that lift limits and put them again,
// in any interleaving: no stream with limits is left without its marker.
func TestMarkerIsNotDroppedWhileLimitsAreChanged(t *testing.T) {
	for round := range 60 {
		w := newWorld(t)
		w.bucket("bucket")
		s, _ := w.process()
		d, err := create(t.Context(), s, "bucket", "s")
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range 2 {
			all.Go(func() {
				s, f := w.process()
				if round%2 == 1 {
					f.Script(fault.Rule{Op: fault.Get, Prefix: "descriptor/", Nth: 1 + round%7, Times: 2, Do: fault.Stale, Back: 1 + round%3})
				}
				for n := range 8 {
					if _, err := s.UpdateStream(t.Context(), &indexpb.UpdateStreamRequest{Bucket: "bucket", Stream: "s", Config: age(int64((n + i) % 2))}); err != nil {
						t.Error(err)
					}
				}
			})
			all.Go(func() {
				s, _ := w.process()
				for range 20 {
					if err := retain(t.Context(), s); err != nil && !reason.Is(err, reason.VersionConflict) {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		w.wantMarked(t, d.GetStreamId())
	}
}

// The change that puts limits reads, the worker drops the marker that it has just
// armed, as one that no descriptor names: the change fails, and arms another.
func TestMarkerDroppedBeforeItIsNamedIsArmedAgain(t *testing.T) {
	for _, config := range []bool{false, true} {
		t.Run(fmt.Sprint("by a creation ", config), func(t *testing.T) {
			w := newWorld(t)
			w.bucket("bucket")
			s, f := w.process()
			worker, _ := w.process()
			rule := fault.Rule{Op: fault.Put, Prefix: "descriptor/", Nth: 1, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
				return retain(ctx, worker)
			}}
			var d *indexpb.StreamDescriptor
			if config {
				rule.Nth = 2 // the first is the unfinished one
				f.Script(rule)
				res, err := s.CreateStream(t.Context(), &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: "s", Config: age(5)})
				if err != nil {
					t.Fatal(err)
				}
				d = res.GetStream()
			} else {
				var err error
				if d, err = create(t.Context(), s, "bucket", "s"); err != nil {
					t.Fatal(err)
				}
				f.Script(rule)
				if _, err := s.UpdateStream(t.Context(), &indexpb.UpdateStreamRequest{Bucket: "bucket", Stream: "s", Config: age(5)}); err != nil {
					t.Fatal(err)
				}
			}
			w.wantMarked(t, d.GetStreamId())
		})
	}
}
