package cache

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
)

const object = "chain/a/0"

// held is a store whose answers to GetRange are changed, or held back, by the
// test: after they were read.
type held struct {
	objectstore.Store
	calls  atomic.Int64
	answer func(ctx context.Context, o *objectstore.Object) error
}

func (h *held) GetRange(ctx context.Context, key string, r objectstore.Range) (objectstore.Object, error) {
	h.calls.Add(1)
	o, err := h.Store.GetRange(ctx, key, r)
	if err == nil && h.answer != nil {
		err = h.answer(ctx, &o)
	}
	return o, err
}

// until holds answers back until release is closed.
func until(release <-chan struct{}) func(context.Context, *objectstore.Object) error {
	return func(ctx context.Context, _ *objectstore.Object) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func read(ctx context.Context, s *Service, object string) ([]byte, error) {
	res, err := s.ReadRange(ctx, &cachepb.ReadRangeRequest{Object: object, Offset: 3, Length: 10})
	return res.GetData(), err
}

// waiting is how many callers wait for pages of an object.
func waiting(s *Service, object string) int {
	s.loads.mu.Lock()
	defer s.loads.mu.Unlock()
	if o := s.loads.objects[object]; o != nil {
		return o.pages
	}
	return 0
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

// However many want a page at once, the store is read once; and not again.
func TestAHotPageIsReadFromTheStoreOnce(t *testing.T) {
	release := make(chan struct{})
	store := &held{Store: mem.New(), answer: until(release)}
	body := put(t, store, object, PageBytes)
	s := start(t, store, 64<<20)
	const readers = 50
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			if got, err := read(t.Context(), s, object); err != nil || !bytes.Equal(got, body[3:13]) {
				t.Error(got, err)
			}
		})
	}
	eventually(t, "all wait", func() bool { return waiting(s, object) == readers })
	close(release)
	wg.Wait()
	if _, err := read(t.Context(), s, object); err != nil {
		t.Error(err)
	}
	if n := store.calls.Load(); n != 1 {
		t.Errorf("%d reads of the store", n)
	}
	if n := waiting(s, object); n != 0 {
		t.Errorf("%d still wait", n)
	}
}

// Who leaves returns at once, and leaves the page to those who stay.
func TestWhoLeavesDoesNotEndTheLoad(t *testing.T) {
	release := make(chan struct{})
	store := &held{Store: mem.New(), answer: until(release)}
	put(t, store, object, PageBytes)
	s := start(t, store, 64<<20)
	leaving, leave := context.WithCancel(t.Context())
	left, stayed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := read(leaving, s, object)
		left <- err
	}()
	eventually(t, "the first asks the store", func() bool { return store.calls.Load() == 1 })
	go func() {
		_, err := read(t.Context(), s, object)
		stayed <- err
	}()
	eventually(t, "both wait", func() bool { return waiting(s, object) == 2 })
	leave()
	if err := <-left; reason.Code(err) != codes.Canceled {
		t.Errorf("who left: %v", err)
	}
	close(release)
	if err := <-stayed; err != nil || store.calls.Load() != 1 {
		t.Errorf("who stayed: %v after %d reads", err, store.calls.Load())
	}
}

// A page that was on its way when its object was deleted is neither kept nor
// returned (I11: what is deleted is gone).
func TestAPageOfADeletedObjectDoesNotComeIn(t *testing.T) {
	release := make(chan struct{})
	store := &held{Store: mem.New(), answer: until(release)}
	put(t, store, object, PageBytes)
	put(t, store, "chain/a/1", PageBytes)
	s := start(t, store, 64<<20)
	var reads sync.WaitGroup
	for _, o := range []string{object, "chain/a/1"} {
		reads.Go(func() {
			if _, err := read(t.Context(), s, o); o != object && err != nil {
				t.Errorf("another object: %v", err)
			}
		})
	}
	eventually(t, "both are read", func() bool { return store.calls.Load() == 2 })
	if _, err := s.DeleteObjects(t.Context(), &cachepb.DeleteObjectsRequest{Objects: []string{object}}); err != nil {
		t.Fatal(err)
	}
	close(release)
	reads.Wait()
	if _, ok := s.pages.GetIfPresent(pageKey{object, 0}); ok {
		t.Error("the page is held")
	}
	if _, ok := s.pages.GetIfPresent(pageKey{"chain/a/1", 0}); !ok {
		t.Error("the other object's page is not held")
	}
	if _, err := read(t.Context(), s, object); !reason.Is(err, reason.ObjectNotFound) {
		t.Errorf("got %v", err)
	}
}

// A delete that the store refuses says so, and takes nothing out.
func TestAFailedDeleteIsTyped(t *testing.T) {
	faults := fault.New(mem.New())
	put(t, faults, object, 100)
	s := start(t, faults, 64<<20)
	faults.Script(fault.Rule{Op: fault.Delete, Nth: 1, Do: fault.FailBefore})
	req := &cachepb.DeleteObjectsRequest{Objects: []string{object}}
	if _, err := s.DeleteObjects(t.Context(), req); reason.Code(err) != codes.Unavailable || !reason.Is(err, reason.StorageDown) {
		t.Fatalf("got %v", err)
	}
	if _, err := read(t.Context(), s, object); err != nil {
		t.Error(err)
	}
	for range 2 { // deleting is idempotent
		if _, err := s.DeleteObjects(t.Context(), req); err != nil {
			t.Error(err)
		}
	}
}

// What is not there is looked for again: it may come.
func TestAbsenceIsNotRemembered(t *testing.T) {
	store := &held{Store: mem.New()}
	s := start(t, store, 64<<20)
	for range 3 {
		if _, err := read(t.Context(), s, object); reason.Code(err) != codes.NotFound || !reason.Is(err, reason.ObjectNotFound) {
			t.Fatalf("got %v", err)
		}
	}
	if n := store.calls.Load(); n != 3 {
		t.Errorf("the store was asked %d times, want 3", n)
	}
	body := put(t, store, object, 100)
	if got, err := read(t.Context(), s, object); err != nil || !bytes.Equal(got, body[3:13]) {
		t.Errorf("%v, %v", got, err)
	}
}

// A torn page is a failure, not a short page, and is not kept (I10).
func TestATornPageIsNotKept(t *testing.T) {
	torn := true
	store := &held{Store: mem.New(), answer: func(_ context.Context, o *objectstore.Object) error {
		if torn {
			o.Body = o.Body[:len(o.Body)/2]
		}
		return nil
	}}
	body := put(t, store, object, 100)
	s := start(t, store, 64<<20)
	if _, err := read(t.Context(), s, object); reason.Code(err) != codes.Unavailable || !reason.Is(err, reason.StorageDown) {
		t.Fatalf("got %v", err)
	}
	torn = false
	if got, err := read(t.Context(), s, object); err != nil || !bytes.Equal(got, body[3:13]) {
		t.Errorf("%v, %v", got, err)
	}
}

// A range over pages of which one is not as long as it was said is no success.
func TestAnObjectThatShrinksIsNoSuccess(t *testing.T) {
	store := &held{Store: mem.New()}
	put(t, store, object, 2*PageBytes)
	s := start(t, store, 64<<20)
	if _, err := read(t.Context(), s, object); err != nil {
		t.Fatal(err)
	}
	if err := store.Delete(t.Context(), object); err != nil { // past the cache, which nobody may
		t.Fatal(err)
	}
	put(t, store, object, PageBytes+10)
	_, err := s.ReadRange(t.Context(), &cachepb.ReadRangeRequest{Object: object, Offset: PageBytes - 10, Length: 1000})
	if reason.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
}

// Pages are shared: who appends to an answer must get memory of its own.
func TestAnAnswerCannotBeAppendedTo(t *testing.T) {
	store := mem.New()
	put(t, store, object, 100)
	s := start(t, store, 64<<20)
	got, err := read(t.Context(), s, object)
	if err != nil {
		t.Fatal(err)
	}
	_ = append(got, "overwritten"...)
	again, err := s.ReadRange(t.Context(), &cachepb.ReadRangeRequest{Object: object, Offset: 13, Length: 11})
	if err != nil || bytes.Equal(again.GetData(), []byte("overwritten")) {
		t.Errorf("%q, %v", again.GetData(), err)
	}
}

// A store that does not answer: the wait has an end and a type, for the caller's
// deadline and for the cache's own.
func TestASilentStoreIsTyped(t *testing.T) {
	faults := fault.New(mem.New())
	put(t, faults, object, 100)
	s, err := New(Config{LoadTimeout: 20 * time.Millisecond}, Deps{Objects: faults})
	if err != nil {
		t.Fatal(err)
	}
	run(t, s)
	faults.Script(fault.Rule{Op: fault.GetRange, Do: fault.Hang})
	if _, err := read(t.Context(), s, object); reason.Code(err) != codes.DeadlineExceeded || !reason.Is(err, reason.StorageDown) {
		t.Errorf("got %v", err)
	}
	faults.Clear()
	if _, err := read(t.Context(), s, object); err != nil {
		t.Errorf("the failure stayed: %v", err)
	}
}

// A stop does not wait for a store that does not answer.
func TestStopEndsLoads(t *testing.T) {
	store := &held{Store: mem.New(), answer: until(nil)}
	put(t, store, object, 100)
	s, err := New(Config{LoadTimeout: time.Hour}, Deps{Objects: store})
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, s)
	end := make(chan error, 1)
	go func() {
		_, err := read(t.Context(), s, object)
		end <- err
	}()
	eventually(t, "the store is asked", func() bool { return store.calls.Load() == 1 })
	stop()
	if err := <-end; reason.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
	if _, err := read(t.Context(), s, object); reason.Code(err) != codes.Unavailable {
		t.Errorf("after the stop: %v", err)
	}
}

// What is on its way has a limit of its own (I8).
func TestLoadsAreLimited(t *testing.T) {
	release := make(chan struct{})
	var now, most atomic.Int64
	store := &held{Store: mem.New(), answer: func(ctx context.Context, o *objectstore.Object) error {
		defer now.Add(-1)
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		return until(release)(ctx, o)
	}}
	const objects = 20
	for i := range objects {
		put(t, store, fmt.Sprint("chain/a/", i), 100)
	}
	s, err := New(Config{Loads: 3}, Deps{Objects: store})
	if err != nil {
		t.Fatal(err)
	}
	run(t, s)
	var wg sync.WaitGroup
	for i := range objects {
		wg.Go(func() {
			if _, err := read(t.Context(), s, fmt.Sprint("chain/a/", i)); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all wait", func() bool {
		n := 0
		for i := range objects {
			n += waiting(s, fmt.Sprint("chain/a/", i))
		}
		return n == objects && now.Load() == 3
	})
	close(release)
	wg.Wait()
	if n := most.Load(); n != 3 {
		t.Errorf("%d at once, the limit is 3", n)
	}
}
