// Package objectstoretest is the contract suite of objectstore.Store: what
// Nova relies on, checked against every implementation, the real servers
// included, so that no fake is stronger than the real thing.
//
// The suite uses keys of its own under one random folder per test: it runs on a
// store that is shared, prefixed or full of other objects, and leaves nothing.
package objectstoretest

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/objectstore"
)

// patience is how long an operation may go on answering ErrUnavailable or
// ErrThrottled before the suite calls it broken.
const patience = 30 * time.Second

// Run runs the suite. open returns a store and arranges for its end with
// t.Cleanup where Close alone does not do; the suite closes each store it
// opens, once or twice.
func Run(t *testing.T, open func(t *testing.T) objectstore.Store) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, s *suite)
	}{
		{"PutThenRead", putThenRead},
		{"EmptyObject", emptyObject},
		{"BigObject", bigObject},
		{"PutIfAbsentMeetsAnObject", putIfAbsentMeetsAnObject},
		{"PutIfAbsentRaceHasOneWinner", putIfAbsentRace},
		{"PutIfAbsentRaceOfEqualBytesHasOneWinner", putIfAbsentRaceOfEqualBytes},
		{"PutIfMatchReplaces", putIfMatchReplaces},
		{"PutIfMatchRefusesStaleAndAbsent", putIfMatchRefuses},
		{"PutIfMatchRaceHasOneWinner", putIfMatchRace},
		{"PutIfMatchRacesLoseNoUpdate", putIfMatchCounter},
		{"ReadersSeeWholeVersions", readersSeeWholeVersions},
		{"ReadYourWrites", readYourWrites},
		{"Ranges", ranges},
		{"NotFound", notFound},
		{"DeleteIsIdempotent", deleteIsIdempotent},
		{"DeleteTakesAnyNumberOfKeys", deleteBatches},
		{"DeleteThatBreaksOffIsFinishedByARepeat", deleteBrokenOff},
		{"DeletedKeyIsFree", deletedKeyIsFree},
		{"ListOrder", listOrder},
		{"ListPages", listPages},
		{"ListPrefixes", listPrefixes},
		{"InvalidArguments", invalidArguments},
		{"LongKeys", longKeys},
		{"SimilarKeys", similarKeys},
		{"BodiesAreNotAliased", bodiesAreNotAliased},
		{"EndedContext", endedContext},
		{"Close", closeTwice},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &suite{t: t, store: open(t), folder: "t-" + strings.ToLower(rand.Text()), keys: make(chan string, 4096)}
			t.Cleanup(s.end)
			c.test(t, s)
		})
	}
}

// suite is one test's view of the store under test.
type suite struct {
	t      *testing.T
	store  objectstore.Store
	folder string
	keys   chan string // to delete at the end
	closed bool
}

// key returns a key below the test's folder.
func (s *suite) key(name string) string {
	key := s.folder + "/" + name
	s.keys <- key
	return key
}

func (s *suite) end() {
	close(s.keys)
	var keys []string
	for key := range s.keys {
		keys = append(keys, key)
	}
	if s.closed {
		return
	}
	err := settle(func() error { return s.store.Delete(context.Background(), keys...) })
	if err != nil {
		s.t.Errorf("delete what the test made: %v", err)
	}
	if err := s.store.Close(); err != nil {
		s.t.Errorf("Close: %v", err)
	}
}

// settle repeats call while it answers that the store is unavailable or
// throttles, as every caller must.
func settle(call func() error) error {
	for deadline := time.Now().Add(patience); ; {
		err := call()
		if !errors.Is(err, objectstore.ErrUnavailable) && !errors.Is(err, objectstore.ErrThrottled) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// put stores body under a new key and returns key and version.
func (s *suite) put(name string, body []byte) (string, objectstore.ETag) {
	s.t.Helper()
	key := s.key(name)
	return key, s.putAt(key, body)
}

func (s *suite) putAt(key string, body []byte) objectstore.ETag {
	s.t.Helper()
	etag, err := s.store.PutIfAbsent(s.t.Context(), key, body)
	if err != nil {
		s.t.Fatalf("PutIfAbsent(%s): %v", key, err)
	}
	if etag == "" {
		s.t.Fatalf("PutIfAbsent(%s): no etag", key)
	}
	return etag
}

func (s *suite) get(key string) objectstore.Object {
	s.t.Helper()
	o, err := s.store.Get(s.t.Context(), key)
	if err != nil {
		s.t.Fatalf("Get(%s): %v", key, err)
	}
	return o
}

func (s *suite) wantBody(key string, body []byte) {
	s.t.Helper()
	o := s.get(key)
	if string(o.Body) != string(body) || o.Size != int64(len(body)) {
		s.t.Fatalf("Get(%s): %d bytes %.40q, size %d; want %d bytes %.40q", key, len(o.Body), o.Body, o.Size, len(body), body)
	}
}

// sentinels are all answers a caller branches on.
var sentinels = []error{
	objectstore.ErrNotFound, objectstore.ErrExists, objectstore.ErrMismatch, objectstore.ErrUnavailable,
	objectstore.ErrThrottled, objectstore.ErrPermanent, objectstore.ErrRange,
	context.Canceled, context.DeadlineExceeded,
}

// wantErr checks that err is want and nothing else, and names op and key.
func (s *suite) wantErr(err, want error, op, key string) {
	s.t.Helper()
	if !errors.Is(err, want) {
		s.t.Errorf("%s(%.60q): %v; want %v", op, key, err, want)
		return
	}
	for _, other := range sentinels {
		if !errors.Is(other, want) && errors.Is(err, other) {
			s.t.Errorf("%s(%.60q): %v is also %v", op, key, err, other)
		}
	}
	if !strings.Contains(err.Error(), op) {
		s.t.Errorf("%s(%.60q): the error does not name the operation: %v", op, key, err)
	}
	if key != "" && !strings.Contains(err.Error(), key) {
		s.t.Errorf("%s(%.60q): the error does not name the key: %v", op, key, err)
	}
}

// race runs call in n goroutines that start together and returns when all did.
func race(n int, call func(i int)) {
	start, done := make(chan struct{}), make(chan struct{})
	for i := range n {
		go func() {
			<-start
			call(i)
			done <- struct{}{}
		}()
	}
	close(start)
	for range n {
		<-done
	}
}
