package index

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// crash is one way in which one metastore call of a process goes wrong.
type crash struct {
	n    int
	when fault.When
}

func (c crash) String() string { return fmt.Sprintf("call %d/after=%v", c.n, c.when == fault.After) }

// everyCrash runs work in a fresh world, dead before and dead after each
// metastore call that it makes, and then check.
func everyCrash(t *testing.T, prepare func(w *world), work func(ctx context.Context, s *Service), check func(t *testing.T, w *world)) {
	t.Helper()
	w := newWorld(t)
	prepare(w)
	s, f := w.process()
	work(t.Context(), s)
	calls := 0
	for _, c := range f.Counts() {
		calls += c.Calls
	}
	if calls == 0 {
		t.Fatal("no calls to crash at")
	}
	for n := 1; n <= calls; n++ {
		for _, when := range []fault.When{fault.Before, fault.After} {
			c := crash{n, when}
			t.Run(c.String(), func(t *testing.T) {
				w := newWorld(t)
				prepare(w)
				s, f := w.process()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					select {
					case <-f.Killed():
					case <-ctx.Done():
					}
					cancel()
				}()
				f.KillAt(c.n, c.when)
				work(ctx, s)
				check(t, w)
			})
		}
	}
}

// A repeat of a creation gets the first result, and another request does not.
func TestCreateIsIdempotent(t *testing.T) {
	set := func(age int64) *novapb.StreamConfig {
		return &novapb.StreamConfig{RetentionAgeMsPresence: &novapb.StreamConfig_RetentionAgeMs{RetentionAgeMs: age}}
	}
	for _, c := range []struct {
		what         string
		token, again string
		had, has     *novapb.StreamConfig
		ok           bool
	}{
		{"no token, no settings", "", "", nil, nil, true},
		{"no token, equal settings", "", "", set(5), set(5), true},
		{"no token, other settings", "", "", set(5), set(6), false},
		{"no token, defaults are no settings", "", "", nil, set(0), false},
		{"the token again", "a", "a", set(5), set(5), true},
		{"the token again, other settings", "a", "a", set(5), set(6), false},
		{"another token", "a", "b", set(5), set(5), false},
		{"a token where there was none", "", "b", nil, nil, false},
		{"no token after a token, equal settings", "a", "", set(5), set(5), true},
	} {
		t.Run("stream: "+c.what, func(t *testing.T) {
			w := newWorld(t)
			w.bucket("bucket")
			s, _ := w.process()
			call := func(token string, config *novapb.StreamConfig) (*indexpb.CreateStreamResponse, error) {
				return s.CreateStream(t.Context(), &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: "s", RequestToken: token, Config: config})
			}
			first, err := call(c.token, c.had)
			if err != nil || !first.GetCreated() {
				t.Fatalf("created %v, %v", first.GetCreated(), err)
			}
			again, err := call(c.again, c.has)
			if !c.ok {
				wantReason(t, err, reason.StreamExists)
				return
			}
			if err != nil || again.GetCreated() || again.GetStream().GetStreamId() != first.GetStream().GetStreamId() {
				t.Fatalf("again: %v, %v; want stream %s", again, err, first.GetStream().GetStreamId())
			}
		})
		t.Run("bucket: "+c.what, func(t *testing.T) {
			w := newWorld(t)
			s, _ := w.process()
			call := func(token string, config *novapb.StreamConfig) (*indexpb.CreateBucketResponse, error) {
				req := &indexpb.CreateBucketRequest{Bucket: "bucket", RequestToken: token}
				if config != nil {
					req.Config = &novapb.BucketConfig{DefaultStreamConfig: config}
				}
				return s.CreateBucket(t.Context(), req)
			}
			first, err := call(c.token, c.had)
			if err != nil {
				t.Fatal(err)
			}
			again, err := call(c.again, c.has)
			if !c.ok {
				wantReason(t, err, reason.BucketExists)
				return
			}
			if err != nil || again.GetBucket().GetBucketId() != first.GetBucket().GetBucketId() {
				t.Fatalf("again: %v, %v", again, err)
			}
		})
	}
}

// Two creations of one name make one stream, and the loser leaves nothing.
func TestCreateOfOneNameByManyMakesOneStream(t *testing.T) {
	for range 30 {
		w := newWorld(t)
		w.bucket("bucket")
		var mu sync.Mutex
		ids := map[string]int{}
		created := 0
		var wg sync.WaitGroup
		for range 4 {
			s, _ := w.process()
			wg.Go(func() {
				res, err := s.CreateStream(t.Context(), &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: "s"})
				if err != nil {
					t.Errorf("create: %v", err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				ids[res.GetStream().GetStreamId()]++
				if res.GetCreated() {
					created++
				}
			})
		}
		wg.Wait()
		if len(ids) != 1 || created != 1 {
			t.Fatalf("%d streams, made by %d calls; want one by one", len(ids), created)
		}
		if n := w.markers(QueueCreate); n != 0 {
			t.Fatalf("%d markers are left", n)
		}
	}
}

// What a creation that dies leaves is either the stream, or nothing once the
// reaper came; and the name can be created again at once, and dropped.
func TestCreateThatDiesConverges(t *testing.T) {
	var first *indexpb.StreamDescriptor
	everyCrash(t,
		func(w *world) { first = nil; w.bucket("bucket") },
		func(ctx context.Context, s *Service) { first, _ = create(ctx, s, "bucket", "s") },
		func(t *testing.T, w *world) {
			s, _ := w.process()
			before, err := s.ResolveStream(t.Context(), &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: "s"})
			if err != nil {
				wantReason(t, err, reason.StreamNotFound)
			}
			if first != nil && before.GetStream().GetStreamId() != first.GetStreamId() {
				t.Fatalf("an acknowledged stream is not there (I2): %v", before)
			}
			again, err := create(t.Context(), s, "bucket", "s")
			if err != nil {
				t.Fatalf("create again: %v", err)
			}
			if before != nil && before.GetStream().GetStreamId() != again.GetStreamId() {
				t.Fatal("a stream that was visible was replaced")
			}
			w.reap()
			id := again.GetStreamId()
			if !w.exists(descriptorKey(id)) || !w.exists(headKey(id)) || w.names("bucket") != 1 {
				t.Fatal("the stream is not whole")
			}
			w.oneStream(t, id)
			w.free(t, s, again)
			if err := drop(t.Context(), s, "bucket"); err != nil {
				t.Fatalf("drop the bucket: %v", err)
			}
		})
}

// oneStream wants no rows of another stream, and no markers.
func (w *world) oneStream(t *testing.T, id string) {
	t.Helper()
	if n := w.markers(QueueCreate); n != 0 {
		t.Fatalf("%d markers are left", n)
	}
	for _, made := range w.made() {
		if made != id && (w.exists(descriptorKey(made)) || w.exists(headKey(made))) {
			t.Fatalf("rows of stream %s are left, which has no name", made)
		}
	}
}

func (w *world) free(t *testing.T, s *Service, d *indexpb.StreamDescriptor) {
	t.Helper()
	if _, err := s.FreeName(t.Context(), &indexpb.FreeNameRequest{Bucket: d.GetBucket(), Stream: d.GetName(), StreamId: d.GetStreamId()}); err != nil {
		t.Fatal(err)
	}
}

// A free that dies is finished by a repeat, and never frees another's name.
func TestFreeNameThatDiesConverges(t *testing.T) {
	var d *indexpb.StreamDescriptor
	free := func(ctx context.Context, s *Service) error {
		_, err := s.FreeName(ctx, &indexpb.FreeNameRequest{Bucket: "bucket", Stream: "s", StreamId: d.GetStreamId()})
		return err
	}
	everyCrash(t,
		func(w *world) {
			w.bucket("bucket")
			s, _ := w.process()
			var err error
			if d, err = create(w.t.Context(), s, "bucket", "s"); err != nil {
				w.t.Fatal(err)
			}
		},
		func(ctx context.Context, s *Service) { _ = free(ctx, s) },
		func(t *testing.T, w *world) {
			s, _ := w.process()
			next, err := create(t.Context(), s, "bucket", "s")
			if err != nil {
				t.Fatalf("create while it is being freed: %v", err)
			}
			if err := free(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if w.exists(descriptorKey(d.GetStreamId())) {
				t.Fatal("the descriptor is left")
			}
			got, err := s.ResolveStream(t.Context(), &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: "s"})
			if next.GetStreamId() == d.GetStreamId() {
				wantReason(t, err, reason.StreamNotFound)
				return
			}
			if err != nil || got.GetStream().GetStreamId() != next.GetStreamId() {
				t.Fatalf("the name's next stream was freed: %v, %v", got, err)
			}
		})
}

func TestNameCreatedAgainMeansAnotherStream(t *testing.T) {
	w := newWorld(t)
	w.bucket("bucket")
	s, _ := w.process()
	seen := map[string]bool{}
	for range 20 {
		d, err := create(t.Context(), s, "bucket", "s")
		if err != nil {
			t.Fatal(err)
		}
		if seen[d.GetStreamId()] {
			t.Fatalf("stream id %s came twice", d.GetStreamId())
		}
		seen[d.GetStreamId()] = true
		w.free(t, s, d)
		_, err = s.ResolveStream(t.Context(), &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: "s"})
		wantReason(t, err, reason.StreamNotFound)
	}
}

// Lost replies and own writes that are reported as conflicts are recognised by
// the attempt id (I6).
func TestCreateRecognisesItsOwnWrites(t *testing.T) {
	for _, do := range []fault.Action{fault.LoseReply, fault.OwnConflict} {
		for nth := 1; nth <= 7; nth++ {
			t.Run(fmt.Sprintf("action %d/write %d", do, nth), func(t *testing.T) {
				w := newWorld(t)
				w.bucket("bucket")
				s, f := w.process()
				f.Script(fault.Rule{Op: fault.Write, Nth: nth, Do: do})
				d, err := create(t.Context(), s, "bucket", "s")
				if err != nil {
					t.Fatal(err)
				}
				w.reap()
				w.oneStream(t, d.GetStreamId())
				got, err := s.ResolveStream(t.Context(), &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: "s"})
				if err != nil || got.GetStream().GetStreamId() != d.GetStreamId() {
					t.Fatalf("%v, %v", got, err)
				}
				w.free(t, s, d)
				if err := drop(t.Context(), s, "bucket"); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// A creator that is slower than the reaper does not end with a name that leads
// nowhere: it makes the stream anew or, if it dies, whoever meets the name frees it.
func TestCreateSlowerThanTheReaper(t *testing.T) {
	for _, dies := range []bool{false, true} {
		for _, meet := range []string{"create", "resolve", "list"} {
			t.Run(fmt.Sprintf("dies=%v/%s", dies, meet), func(t *testing.T) {
				w := newWorld(t)
				w.bucket("bucket")
				s, f := w.process()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				f.Script(fault.Rule{Op: fault.Put, Prefix: "name/", Nth: 1, Hook: func(context.Context, fault.Op, string) error {
					w.reap()
					return nil
				}})
				if dies {
					f.Script(fault.Rule{Op: fault.Put, Prefix: "descriptor/", Nth: 2, Hook: func(context.Context, fault.Op, string) error {
						cancel()
						f.KillAt(1, fault.Before)
						return fault.ErrKilled
					}})
				}
				d, err := create(ctx, s, "bucket", "s")
				if !dies {
					if err != nil || !w.exists(descriptorKey(d.GetStreamId())) || !w.exists(headKey(d.GetStreamId())) {
						t.Fatalf("%v, %v: not whole", d, err)
					}
					w.reap()
					w.oneStream(t, d.GetStreamId())
					return
				}
				if err == nil {
					t.Fatal("the creation was acknowledged, but the reaper removed its rows")
				}
				other, _ := w.process()
				switch meet {
				case "create":
					if _, err := create(t.Context(), other, "bucket", "s"); err != nil {
						t.Fatalf("the name cannot be created again: %v", err)
					}
					return
				case "resolve":
					_, err := other.ResolveStream(t.Context(), &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: "s"})
					wantReason(t, err, reason.StreamNotFound)
				case "list":
					res, err := other.ListStreams(t.Context(), &indexpb.ListStreamsRequest{Bucket: "bucket", Limit: 10})
					if err != nil || len(res.GetStreams()) != 0 {
						t.Fatalf("listed %v, %v", res, err)
					}
				}
				if n := w.names("bucket"); n != 0 {
					t.Fatalf("%d names are left that lead nowhere", n)
				}
				w.reap()
				for _, id := range w.made() {
					if w.exists(descriptorKey(id)) || w.exists(headKey(id)) {
						t.Fatalf("rows of stream %s are left", id)
					}
				}
				if err := drop(t.Context(), other, "bucket"); err != nil {
					t.Fatalf("the bucket cannot be dropped: %v", err)
				}
			})
		}
	}
}

// unreaped is a stream whose creation could not drop its marker any more.
func unreaped(t *testing.T) (*world, *indexpb.StreamDescriptor) {
	t.Helper()
	w := newWorld(t)
	w.bucket("bucket")
	s, f := w.process()
	f.Script(fault.Rule{Op: fault.Delete, Prefix: "due/", Do: fault.FailBefore})
	d, err := create(t.Context(), s, "bucket", "s")
	if err != nil || w.markers(QueueCreate) != 1 {
		t.Fatalf("%v, %d markers", err, w.markers(QueueCreate))
	}
	return w, d
}

// Old reads do not make the reaper take a stream for an orphan, nor a name that
// is to be freed for a free one: both are proven.
func TestOldReadOfANameDecidesNothing(t *testing.T) {
	for _, op := range []string{"reap", "free"} {
		t.Run(op, func(t *testing.T) {
			w, d := unreaped(t)
			s, f := w.process()
			f.Script(fault.Rule{Op: fault.Get, Prefix: "name/", Nth: 1, Do: fault.Stale})
			if op == "free" {
				w.free(t, s, d)
				if w.names("bucket") != 0 || w.exists(descriptorKey(d.GetStreamId())) {
					t.Fatal("the name is not free")
				}
				return
			}
			if _, err := s.RemoveOrphan(t.Context(), &indexpb.RemoveOrphanRequest{Bucket: "bucket", Stream: "s", StreamId: d.GetStreamId()}); err != nil {
				t.Fatal(err)
			}
			got, err := s.ResolveStream(t.Context(), &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: "s"})
			if err != nil || got.GetStream().GetStreamId() != d.GetStreamId() {
				t.Fatalf("an acknowledged stream was taken for an orphan (I2): %v, %v", got, err)
			}
		})
	}
}

// The head of a stream that was ever opened stays until its DELETE entry is
// settled, however its name went.
func TestHeadOfAnOpenedStreamIsNoOrphan(t *testing.T) {
	for _, opened := range []bool{false, true} {
		t.Run(fmt.Sprint(opened), func(t *testing.T) {
			w, d := unreaped(t)
			s, _ := w.process()
			if opened {
				h, err := s.GetHead(t.Context(), &indexpb.GetHeadRequest{StreamId: d.GetStreamId()})
				if err != nil {
					t.Fatal(err)
				}
				h.Head.OpenedEpoch, h.Head.Attempt = 3, stream.NewAttemptID().String()
				if _, err := s.PutHead(t.Context(), &indexpb.PutHeadRequest{Head: h.GetHead(), ExpectedVersion: h.GetVersion()}); err != nil {
					t.Fatal(err)
				}
			}
			w.free(t, s, d)
			w.reap()
			if w.exists(headKey(d.GetStreamId())) != opened {
				t.Fatalf("opened %v, the head is there %v", opened, !opened)
			}
		})
	}
}

// What proves that a name is free is removed by whoever meets it, if its maker
// died in between.
func TestProbeThatStayedIsNoName(t *testing.T) {
	for _, op := range []string{"resolve", "create", "list", "drop", "free"} {
		t.Run(op, func(t *testing.T) {
			w := newWorld(t)
			w.bucket("bucket")
			s, f := w.process()
			f.Script(fault.Rule{Op: fault.Delete, Prefix: "name/", Nth: 1, Hook: func(context.Context, fault.Op, string) error {
				f.KillAt(1, fault.Before)
				return fault.ErrKilled
			}})
			req := &indexpb.FreeNameRequest{Bucket: "bucket", Stream: "s", StreamId: stream.NewID().String()}
			if _, err := s.FreeName(t.Context(), req); err == nil || w.names("bucket") != 1 {
				t.Fatalf("%v, %d names", err, w.names("bucket"))
			}
			s, _ = w.process()
			var err error
			left := 0
			switch op {
			case "resolve":
				_, rerr := s.ResolveStream(t.Context(), &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: "s"})
				wantReason(t, rerr, reason.StreamNotFound)
			case "create":
				_, err = create(t.Context(), s, "bucket", "s")
				left = 1
			case "list":
				var res *indexpb.ListStreamsResponse
				res, err = s.ListStreams(t.Context(), &indexpb.ListStreamsRequest{Bucket: "bucket", Limit: 10})
				if len(res.GetStreams()) != 0 {
					t.Errorf("listed %v", res)
				}
				left = 1
			case "drop":
				err = drop(t.Context(), s, "bucket")
			case "free":
				_, err = s.FreeName(t.Context(), req)
			}
			if err != nil || w.names("bucket") != left {
				t.Fatalf("%v, %d names are left", err, w.names("bucket"))
			}
		})
	}
}

// An express stream is refused, before anything is written.
func TestCreateRefusesWhatThisVersionDoesNotHave(t *testing.T) {
	w := newWorld(t)
	w.bucket("bucket")
	s, f := w.process()
	_, err := s.CreateStream(t.Context(), &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: "s", Config: &novapb.StreamConfig{Profile: novapb.StorageProfile_STORAGE_PROFILE_EXPRESS}})
	wantReason(t, err, reason.Unimplemented)
	if n := f.Counts()[fault.Put].Calls; n != 0 {
		t.Fatalf("%d rows were written", n)
	}
}

// A stream's shard follows from its id, for ever.
func TestCreateGivesTheShardOfTheID(t *testing.T) {
	w := newWorld(t)
	w.bucket("bucket")
	s, _ := w.process()
	for i := range 20 {
		d, err := create(t.Context(), s, "bucket", fmt.Sprint("s", i))
		if err != nil {
			t.Fatal(err)
		}
		id, err := stream.ParseID(d.GetStreamId())
		if err != nil || stream.Shard(d.GetShard()) != id.Shard(8) {
			t.Fatalf("stream %s has shard %d, want %d (%v)", id, d.GetShard(), id.Shard(8), err)
		}
	}
}

// Until a sequencer has opened a new constellation, nobody can tell a stream's
// shard: that passes, and is not the caller's fault.
func TestCreateBeforeTheConstellationIsOpened(t *testing.T) {
	s, err := New(Config{}, Deps{Store: mem.New()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateBucket(t.Context(), &indexpb.CreateBucketRequest{Bucket: "bkt"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateStream(t.Context(), &indexpb.CreateStreamRequest{Bucket: "bkt", Stream: "s"}); reason.Code(err) != codes.Unavailable {
		t.Errorf("%v, want UNAVAILABLE", err)
	}
}
