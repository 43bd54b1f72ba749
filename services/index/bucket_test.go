package index

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Of a creation and a bucket's delete at the same time one wins: no stream that
// was acknowledged is in a bucket that is gone, and a bucket that is gone has no
// names.
func TestCreateAndBucketDeleteNeverBothWin(t *testing.T) {
	both := map[string]int{}
	for range 300 {
		w := newWorld(t)
		w.bucket("bucket")
		var wg sync.WaitGroup
		var made, dropped error
		creator, _ := w.process()
		dropper, _ := w.process()
		wg.Go(func() { _, made = create(t.Context(), creator, "bucket", "s") })
		wg.Go(func() { dropped = drop(t.Context(), dropper, "bucket") })
		wg.Wait()
		s, _ := w.process()
		_, gone := s.GetBucket(t.Context(), &indexpb.GetBucketRequest{Bucket: "bucket"})
		switch {
		case made == nil && dropped == nil:
			t.Fatal("the stream was made and its bucket dropped")
		case dropped == nil:
			wantReason(t, gone, reason.BucketNotFound)
			if n := w.names("bucket"); n != 0 {
				t.Fatalf("a dropped bucket has %d names", n)
			}
		case made == nil:
			wantReason(t, dropped, reason.BucketNotEmpty)
			if gone != nil {
				t.Fatalf("the bucket of an acknowledged stream: %v", gone)
			}
		default:
			// Both may lose: the creation sees DELETING, the delete sees its name.
			wantReason(t, dropped, reason.BucketNotEmpty)
			wantReason(t, made, reason.BucketDeleting)
		}
		both[fmt.Sprint(made == nil, dropped == nil)]++
		w.reap()
		if w.markers(QueueCreate) != 0 {
			t.Fatal("markers are left")
		}
		for _, id := range w.made() {
			if w.exists(descriptorKey(id)) != (made == nil) || w.exists(headKey(id)) && made != nil {
				t.Fatalf("rows of stream %s: descriptor %v, head %v, made %v", id, w.exists(descriptorKey(id)), w.exists(headKey(id)), made)
			}
		}
	}
	t.Log(both)
}

// A creation that looked at the bucket before its delete began, and puts its
// name after the delete looked for names, undoes.
func TestCreateBehindABucketDeleteUndoes(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("made again=%v", again), func(t *testing.T) {
			w := newWorld(t)
			w.bucket("bucket")
			s, f := w.process()
			other, _ := w.process()
			f.Script(fault.Rule{Op: fault.Put, Prefix: "name/", Nth: 1, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
				err := drop(ctx, other, "bucket")
				if again {
					w.bucket("bucket")
				}
				return err
			}})
			_, err := create(t.Context(), s, "bucket", "s")
			wantReason(t, err, reason.BucketNotFound)
			if w.names("bucket") != 0 {
				t.Fatal("the name is left")
			}
		})
	}
}

// If such a creation dies before it undoes, the reaper undoes it, at whatever
// point it dies itself.
func TestStreamWithoutABucketIsUndone(t *testing.T) {
	orphan := func(w *world) *indexpb.Due {
		w.bucket("bucket")
		s, f := w.process()
		other, _ := w.process()
		f.Script(fault.Rule{Op: fault.Put, Prefix: "name/", Nth: 1, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
			return drop(ctx, other, "bucket")
		}})
		f.Script(fault.Rule{Op: fault.Get, Prefix: "bucket/", Nth: 2, Hook: func(context.Context, fault.Op, string) error {
			f.KillAt(1, fault.Before)
			return fault.ErrKilled
		}})
		ctx, cancel := context.WithCancel(w.t.Context())
		defer cancel()
		if _, err := create(ctx, s, "bucket", "s"); err == nil {
			w.t.Fatal("the creation did not die")
		}
		w.pass(time.Hour)
		due, err := other.ListDue(w.t.Context(), &indexpb.ListDueRequest{Queue: QueueCreate, Until: w.clock().UnixMilli(), Limit: 10})
		if err != nil || len(due.GetDue()) != 1 || w.names("bucket") != 1 {
			w.t.Fatalf("%d names, markers %v, %v", w.names("bucket"), due, err)
		}
		return due.GetDue()[0].GetDue()
	}
	var d *indexpb.Due
	everyCrash(t,
		func(w *world) { d = orphan(w) },
		func(ctx context.Context, s *Service) {
			_, _ = s.RemoveOrphan(ctx, &indexpb.RemoveOrphanRequest{Bucket: d.GetBucket(), Stream: d.GetName(), StreamId: d.GetStreamId()})
		},
		func(t *testing.T, w *world) {
			w.reap()
			w.reap() // of the graves of the first
			if w.names("bucket") != 0 {
				t.Fatal("the name is left")
			}
			w.oneStream(t, "")
		})
}

// A name means nothing before its bucket is proven: else a record could be
// stored that an undone creation takes with it (I2).
func TestNameMeansNothingBeforeItsBucketIsProven(t *testing.T) {
	w := newWorld(t)
	b := w.bucket("bucket")
	s, f := w.process()
	other, _ := w.process()
	finish := func() error {
		_, err := other.FinishDeleteBucket(t.Context(), &indexpb.FinishDeleteBucketRequest{Bucket: "bucket", BucketId: b.GetBucketId()})
		return err
	}
	f.Script(fault.Rule{Op: fault.Get, Prefix: "bucket/", Nth: 2, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		if _, err := other.BeginDeleteBucket(ctx, &indexpb.BeginDeleteBucketRequest{Bucket: "bucket"}); err != nil {
			return err
		}
		got, err := other.ResolveStream(ctx, &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: "s", ForAppend: true})
		if !reason.Is(err, reason.BucketDeleting) {
			t.Errorf("the name means %v, %v", got, err)
		}
		return nil
	}})
	_, err := create(t.Context(), s, "bucket", "s")
	wantReason(t, err, reason.BucketDeleting)
	if err := finish(); err != nil {
		t.Fatal(err)
	}
	w.reap()
	w.oneStream(t, "")
}

// Whoever meets a name that is not proven proves it; the creation is one.
func TestUnfinishedCreationIsFinishedByWhoMeetsIt(t *testing.T) {
	for what, meet := range map[string]func(ctx context.Context, s *Service) (*indexpb.StreamDescriptor, error){
		"resolve": func(ctx context.Context, s *Service) (*indexpb.StreamDescriptor, error) {
			res, err := s.ResolveStream(ctx, &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: "s"})
			return res.GetStream(), err
		},
		"create": func(ctx context.Context, s *Service) (*indexpb.StreamDescriptor, error) {
			return create(ctx, s, "bucket", "s")
		},
		"update": func(ctx context.Context, s *Service) (*indexpb.StreamDescriptor, error) {
			res, err := s.UpdateStream(ctx, &indexpb.UpdateStreamRequest{Bucket: "bucket", Stream: "s", Config: &novapb.StreamConfig{RetentionAgeMsPresence: &novapb.StreamConfig_RetentionAgeMs{RetentionAgeMs: 77}}})
			return res.GetStream(), err
		},
	} {
		for _, at := range []fault.Rule{
			{Op: fault.Put, Prefix: "bucket/", Nth: 1},
			{Op: fault.Put, Prefix: "descriptor/", Nth: 2},
		} {
			t.Run(what+" before "+at.Prefix, func(t *testing.T) {
				w := newWorld(t)
				w.bucket("bucket")
				s, f := w.process()
				other, _ := w.process()
				var met *indexpb.StreamDescriptor
				at.Hook = func(ctx context.Context, _ fault.Op, _ string) (err error) {
					met, err = meet(ctx, other)
					return err
				}
				f.Script(at)
				res, err := s.CreateStream(t.Context(), &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: "s"})
				if err != nil || !res.GetCreated() || res.GetStream().GetStreamId() != met.GetStreamId() || res.GetStream().GetUnfinished() {
					t.Fatalf("made %v, %v; met %v", res, err, met)
				}
				if what == "update" && res.GetStream().GetConfig().GetRetentionAgeMs() != 77 {
					t.Errorf("an update was lost: %v", res.GetStream())
				}
				w.reap()
				w.oneStream(t, met.GetStreamId())
				if w.names("bucket") != 1 {
					t.Error("the name is gone")
				}
			})
		}
	}
}

// A delete without force that dies is begun again and finished, whatever it left.
func TestBucketDeleteThatDiesConverges(t *testing.T) {
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprintf("full=%v", full), func(t *testing.T) {
			everyCrash(t,
				func(w *world) {
					w.bucket("bucket")
					if full {
						s, _ := w.process()
						if _, err := create(w.t.Context(), s, "bucket", "s"); err != nil {
							w.t.Fatal(err)
						}
					}
				},
				func(ctx context.Context, s *Service) { _ = drop(ctx, s, "bucket") },
				func(t *testing.T, w *world) {
					s, _ := w.process()
					err := drop(t.Context(), s, "bucket")
					if full {
						wantReason(t, err, reason.BucketNotEmpty)
						if _, err := create(t.Context(), s, "bucket", "t"); err != nil {
							t.Fatalf("the bucket is not ACTIVE again: %v", err)
						}
						return
					}
					if err != nil && !reason.Is(err, reason.BucketNotFound) {
						t.Fatal(err)
					}
					w.bucket("bucket")
					if _, err := create(t.Context(), s, "bucket", "s"); err != nil {
						t.Fatalf("the bucket made again: %v", err)
					}
				})
		})
	}
}

// A forced delete arms its marker before the bucket is DELETING: whoever dies
// in between leaves nothing, or work that the reaper knows of.
func TestForcedBucketDeleteIsArmedFirst(t *testing.T) {
	everyCrash(t,
		func(w *world) { w.bucket("bucket") },
		func(ctx context.Context, s *Service) {
			_, _ = s.BeginDeleteBucket(ctx, &indexpb.BeginDeleteBucketRequest{Bucket: "bucket", Force: true})
		},
		func(t *testing.T, w *world) {
			s, _ := w.process()
			got, err := s.GetBucket(t.Context(), &indexpb.GetBucketRequest{Bucket: "bucket"})
			if err != nil {
				t.Fatal(err)
			}
			if got.GetBucket().GetState() == novapb.BucketState_BUCKET_STATE_DELETING && w.markers(QueueBucket) == 0 {
				t.Fatal("the bucket is DELETING and nobody knows of it")
			}
		})
}

// The reaper drops the marker of a forced delete whose bucket is ACTIVE, after
// it changed the bucket's row: whoever armed it and is slower arms again.
func TestForcedBucketDeleteIsArmedAgainWhenItsBucketChanged(t *testing.T) {
	w := newWorld(t)
	w.bucket("bucket")
	s, f := w.process()
	other, _ := w.process()
	f.Script(fault.Rule{Op: fault.Put, Prefix: "bucket/", Nth: 1, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		if _, err := other.UpdateBucket(ctx, &indexpb.UpdateBucketRequest{Bucket: "bucket"}); err != nil {
			return err
		}
		due, err := other.ListDue(ctx, &indexpb.ListDueRequest{Queue: QueueBucket, Until: w.clock().Add(time.Hour).UnixMilli(), Limit: 10})
		for _, v := range due.GetDue() {
			d := v.GetDue()
			_, err = other.DeleteDue(ctx, &indexpb.DeleteDueRequest{Queue: d.GetQueue(), At: d.GetAt(), DueId: d.GetDueId(), ExpectedVersion: v.GetVersion()})
		}
		return err
	}})
	if _, err := s.BeginDeleteBucket(t.Context(), &indexpb.BeginDeleteBucketRequest{Bucket: "bucket", Force: true}); err != nil {
		t.Fatal(err)
	}
	if w.markers(QueueBucket) == 0 {
		t.Fatal("the bucket is DELETING and nothing leads the reaper to it")
	}
}

// A forced delete keeps a bucket that has streams DELETING; nothing is created
// in it; then it goes.
func TestForcedBucketDeleteStaysUntilEmpty(t *testing.T) {
	w := newWorld(t)
	b := w.bucket("bucket")
	s, _ := w.process()
	ctx := t.Context()
	d, err := create(ctx, s, "bucket", "s")
	if err != nil {
		t.Fatal(err)
	}
	finish := func(id string) error {
		_, err := s.FinishDeleteBucket(ctx, &indexpb.FinishDeleteBucketRequest{Bucket: "bucket", BucketId: id, Force: true})
		return err
	}
	if _, err := s.BeginDeleteBucket(ctx, &indexpb.BeginDeleteBucketRequest{Bucket: "bucket", Force: true}); err != nil {
		t.Fatal(err)
	}
	wantReason(t, finish(b.GetBucketId()), reason.BucketNotEmpty)
	_, err = create(ctx, s, "bucket", "t")
	wantReason(t, err, reason.BucketDeleting)
	_, err = s.CreateBucket(ctx, &indexpb.CreateBucketRequest{Bucket: "bucket"})
	wantReason(t, err, reason.BucketDeleting)
	_, err = s.UpdateBucket(ctx, &indexpb.UpdateBucketRequest{Bucket: "bucket", Config: &novapb.BucketConfig{}})
	wantReason(t, err, reason.BucketDeleting)
	w.free(t, s, d)
	if err := finish(b.GetBucketId()); err != nil {
		t.Fatal(err)
	}
	next := w.bucket("bucket")
	if err := finish(b.GetBucketId()); err != nil {
		t.Fatalf("the end of an old delete again: %v", err)
	}
	got, err := s.GetBucket(ctx, &indexpb.GetBucketRequest{Bucket: "bucket"})
	if err != nil || got.GetBucket().GetBucketId() != next.GetBucketId() {
		t.Fatalf("an old delete removed the next bucket: %v, %v", got, err)
	}
}

func TestBucketDeleteRecognisesItsOwnWrites(t *testing.T) {
	for _, do := range []fault.Action{fault.LoseReply, fault.OwnConflict} {
		for nth := 1; nth <= 2; nth++ {
			w := newWorld(t)
			w.bucket("bucket")
			s, f := w.process()
			f.Script(fault.Rule{Op: fault.Write, Nth: nth, Do: do})
			err := drop(t.Context(), s, "bucket")
			if reason.Code(err) == codes.Unavailable {
				// The caller repeats: the row may be gone already.
				err = drop(t.Context(), s, "bucket")
			}
			if err != nil && !reason.Is(err, reason.BucketNotFound) {
				t.Errorf("action %d, write %d: %v", do, nth, err)
			}
			_, err = s.GetBucket(t.Context(), &indexpb.GetBucketRequest{Bucket: "bucket"})
			wantReason(t, err, reason.BucketNotFound)
		}
	}
}

// Creations at one time share a change of the bucket's row.
func TestCreationsShareTheProofOfTheirBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b := w.bucket("bucket")
		s, f := w.process()
		hold := make(chan struct{})
		f.Script(fault.Rule{Op: fault.Put, Prefix: "bucket/", Nth: 1, Hook: func(context.Context, fault.Op, string) error { <-hold; return nil }})
		var wg sync.WaitGroup
		errs := make([]error, 50)
		for i := range errs {
			wg.Go(func() { errs[i] = s.proveActive(t.Context(), "bucket", b.GetBucketId()) })
		}
		synctest.Wait() // the first changes the row, the others wait for it or share the next
		close(hold)
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if n := f.Counts()[fault.Put].Calls; n > 25 {
			t.Errorf("50 creations changed the bucket's row %d times", n)
		}
		if err := s.proveActive(t.Context(), "bucket", "another"); !reason.Is(err, reason.BucketNotFound) {
			t.Errorf("a bucket made again passes as the old one: %v", err)
		}
		if len(s.touches) != 0 {
			t.Errorf("%d shared changes are remembered for ever (I8)", len(s.touches))
		}
	})
}

// Pages list every name once, in the order of its bytes.
func TestListStreamsPages(t *testing.T) {
	w := newWorld(t)
	w.bucket("bucket")
	s, _ := w.process()
	ctx := t.Context()
	names := []string{
		"a", "a/", "a/b", "a/b/c", "a/c", "a b", "a~", "ab", "b", "//", "~", "é", "日本/語", "\U0001f600", "Z", "0",
		strings.Repeat("x", stream.MaxStreamName), strings.Repeat("x", stream.MaxStreamName-1), strings.Repeat("界", stream.MaxStreamName/3),
	}
	for _, n := range names {
		if _, err := create(ctx, s, "bucket", n); err != nil {
			t.Fatalf("create %q: %v", n, err)
		}
	}
	slices.Sort(names)
	w.bucket("bucket2") // a neighbour whose name begins like it
	if _, err := create(ctx, s, "bucket2", "a"); err != nil {
		t.Fatal(err)
	}
	pages := func(prefix, after string, limit uint32) []string {
		var got []string
		for {
			res, err := s.ListStreams(ctx, &indexpb.ListStreamsRequest{Bucket: "bucket", Prefix: prefix, StartAfter: after, Limit: limit})
			if err != nil {
				t.Fatalf("list %q after %q: %v", prefix, after, err)
			}
			for _, d := range res.GetStreams() {
				got = append(got, d.GetName())
			}
			if len(res.GetStreams()) > int(limit) {
				t.Fatalf("a page of %d has %d", limit, len(res.GetStreams()))
			}
			if !res.GetHasMore() {
				return got
			}
			after = got[len(got)-1]
		}
	}
	for _, prefix := range append([]string{"", "a", "a/", "x", "none", "\xc3"}, names...) {
		for _, after := range append([]string{"", "a", "a/", "zz", "\xff"}, names...) {
			var want []string
			for _, n := range names {
				if strings.HasPrefix(n, prefix) && n > after {
					want = append(want, n)
				}
			}
			for _, limit := range []uint32{1, 3, 1000} {
				if got := pages(prefix, after, limit); !slices.Equal(got, want) {
					t.Fatalf("prefix %q after %q limit %d:\ngot  %q\nwant %q", prefix, after, limit, got, want)
				}
			}
		}
	}
	_, err := s.ListStreams(ctx, &indexpb.ListStreamsRequest{Bucket: "none", Limit: 1})
	wantReason(t, err, reason.BucketNotFound)
}

func TestListBucketsPages(t *testing.T) {
	w := newWorld(t)
	s, _ := w.process()
	names := []string{"a-b", "abc", "abc-d", "abcd", "b-1", "b00", "zzz"}
	for _, n := range names {
		w.bucket(n)
	}
	for _, prefix := range []string{"", "abc", "b", "none", "~", " ", "é", "a/b", strings.Repeat("x", 63)} {
		for _, after := range append([]string{"", "b", "zzzz", "é", "~~~"}, names...) {
			for _, limit := range []uint32{1, 2, 100} {
				var got, want []string
				for _, n := range names {
					if strings.HasPrefix(n, prefix) && n > after {
						want = append(want, n)
					}
				}
				for at := after; ; {
					res, err := s.ListBuckets(t.Context(), &indexpb.ListBucketsRequest{Prefix: prefix, StartAfter: at, Limit: limit})
					if err != nil {
						t.Fatalf("list %q after %q: %v", prefix, at, err)
					}
					for _, b := range res.GetBuckets() {
						got = append(got, b.GetName())
					}
					if !res.GetHasMore() {
						break
					}
					at = got[len(got)-1]
				}
				if !slices.Equal(got, want) {
					t.Fatalf("prefix %q after %q limit %d: got %q, want %q", prefix, after, limit, got, want)
				}
			}
		}
	}
}

// A full page of the largest size says whether more follow.
func TestListAtTheLargestPage(t *testing.T) {
	w := newWorld(t)
	s, _ := w.process()
	ctx := t.Context()
	for i := range 1001 {
		due := &indexpb.Due{Queue: "q", DueId: fmt.Sprintf("%04d", i), At: 5, Attempt: "a"}
		if _, err := s.PutDue(ctx, &indexpb.PutDueRequest{Due: due, ExpectedVersion: -1}); err != nil {
			t.Fatal(err)
		}
		if i < 998 {
			continue
		}
		res, err := s.ListDue(ctx, &indexpb.ListDueRequest{Queue: "q", Until: 5, Limit: 1000})
		if err != nil || len(res.GetDue()) != min(i+1, 1000) || res.GetHasMore() != (i == 1000) {
			t.Fatalf("%d rows: page of %d, more %v, %v", i+1, len(res.GetDue()), res.GetHasMore(), err)
		}
	}
	res, err := s.ListDue(ctx, &indexpb.ListDueRequest{Queue: "q", Until: 4, Limit: 10})
	if err != nil || len(res.GetDue()) != 0 {
		t.Fatalf("markers that are not due: %v, %v", res, err)
	}
}

// Pages of markers, each from behind the last of the one before, hold every marker
// once, by time and id.
func TestListDueByPages(t *testing.T) {
	w := newWorld(t)
	s, _ := w.process()
	var want []string
	for at := range int64(5) {
		for _, id := range []string{"A", "B", "C"} {
			want = append(want, fmt.Sprint(at, id))
			due := &indexpb.Due{Queue: "q", DueId: id, At: at, Attempt: "a"}
			if _, err := s.PutDue(t.Context(), &indexpb.PutDueRequest{Due: due, ExpectedVersion: -1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for limit := uint32(1); limit <= 16; limit++ {
		var got []string
		req := &indexpb.ListDueRequest{Queue: "q", Until: 3, Limit: limit}
		for more := true; more; {
			res, err := s.ListDue(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range res.GetDue() {
				req.AfterAt, req.AfterDueId = v.GetDue().GetAt(), v.GetDue().GetDueId()
				got = append(got, fmt.Sprint(req.GetAfterAt(), req.GetAfterDueId()))
			}
			more = res.GetHasMore()
		}
		if !slices.Equal(got, want[:12]) {
			t.Errorf("by %d: %v, want %v", limit, got, want[:12])
		}
	}
	// Behind what is due is nothing.
	res, err := s.ListDue(t.Context(), &indexpb.ListDueRequest{Queue: "q", Until: 2, Limit: 9, AfterAt: 4, AfterDueId: "A"})
	if err != nil || len(res.GetDue()) != 0 || res.GetHasMore() {
		t.Errorf("behind what is due: %v, %v", res, err)
	}
}

// An append or a read makes the stream that it names only where the bucket says so.
func TestResolveCreatesWhereTheBucketSaysSo(t *testing.T) {
	for _, c := range []struct {
		onAppend, onRead, forAppend, forRead, ok bool
	}{
		{false, false, true, true, false},
		{true, false, true, false, true},
		{true, false, false, true, false},
		{false, true, false, true, true},
		{false, true, true, false, false},
		{true, true, false, false, false},
	} {
		w := newWorld(t)
		s, _ := w.process()
		if _, err := s.CreateBucket(t.Context(), &indexpb.CreateBucketRequest{Bucket: "bucket", Config: &novapb.BucketConfig{
			CreateStreamOnAppendPresence: &novapb.BucketConfig_CreateStreamOnAppend{CreateStreamOnAppend: c.onAppend}, CreateStreamOnReadPresence: &novapb.BucketConfig_CreateStreamOnRead{CreateStreamOnRead: c.onRead},
		}}); err != nil {
			t.Fatal(err)
		}
		ids := map[string]bool{}
		for range 2 {
			res, err := s.ResolveStream(t.Context(), &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: "s", ForAppend: c.forAppend, ForRead: c.forRead})
			if !c.ok {
				wantReason(t, err, reason.StreamNotFound)
				continue
			}
			if err != nil {
				t.Fatalf("%+v: %v", c, err)
			}
			ids[res.GetStream().GetStreamId()] = true
		}
		if c.ok && len(ids) != 1 {
			t.Fatalf("%+v: %d streams", c, len(ids))
		}
	}
	w := newWorld(t)
	s, _ := w.process()
	_, err := s.ResolveStream(t.Context(), &indexpb.ResolveStreamRequest{Bucket: "none", Stream: "s", ForAppend: true})
	wantReason(t, err, reason.BucketNotFound)
}

// Names keep their byte order in their keys, and hold no slash there.
func TestNameKeysKeepTheOrderOfNames(t *testing.T) {
	names := []string{"", "\x01", "/", "a", "a/", "aa", "b", "\xff"}
	for i := range names[1:] {
		a, b := nameKey("bucket", names[i]).Path, nameKey("bucket", names[i+1]).Path
		if a >= b || strings.Count(b, "/") != 2 {
			t.Errorf("%q: key %q; %q: key %q", names[i], a, names[i+1], b)
		}
	}
	if got := nameKey("b", "é").Path; got != "name/b/"+hex.EncodeToString([]byte("é")) {
		t.Error(got)
	}
}
