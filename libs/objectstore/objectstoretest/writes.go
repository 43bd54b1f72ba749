package objectstoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/objectstore"
)

func putThenRead(t *testing.T, s *suite) {
	body := []byte("hello")
	key, etag := s.put("a/b.c_d-E/0", body)
	s.wantBody(key, body)
	o := s.get(key)
	if o.ETag != etag {
		t.Errorf("Get: etag %q, PutIfAbsent returned %q", o.ETag, etag)
	}
	r, err := s.store.GetRange(t.Context(), key, objectstore.Range{Offset: 1, Length: 3})
	if err != nil || string(r.Body) != "ell" || r.Size != 5 || r.ETag != etag {
		t.Errorf("GetRange: %q size %d etag %q, %v", r.Body, r.Size, r.ETag, err)
	}
}

func emptyObject(t *testing.T, s *suite) {
	for name, body := range map[string][]byte{"nil": nil, "empty": {}} {
		key, _ := s.put(name, body)
		s.wantBody(key, nil)
		for _, r := range []objectstore.Range{{}, {Offset: 1}, {Offset: -1}, {Length: 5}} {
			_, err := s.store.GetRange(t.Context(), key, r)
			s.wantErr(err, objectstore.ErrRange, "GetRange", key)
		}
	}
}

func bigObject(t *testing.T, s *suite) {
	body := make([]byte, 8<<20)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(body)
	key, _ := s.put("big", body)
	if o := s.get(key); !bytes.Equal(o.Body, body) || o.Size != int64(len(body)) {
		t.Errorf("Get returned %d bytes, size %d, equal %v", len(o.Body), o.Size, bytes.Equal(o.Body, body))
	}
	for _, r := range []objectstore.Range{{Offset: 5 << 20, Length: 1 << 20}, {Offset: -(3 << 20)}, {Offset: 1}, {Offset: 8<<20 - 1, Length: 1}} {
		start, end, _ := r.Resolve("GetRange", key, int64(len(body)))
		o, err := s.store.GetRange(t.Context(), key, r)
		if err != nil || !bytes.Equal(o.Body, body[start:end]) || o.Size != int64(len(body)) {
			t.Errorf("GetRange(%+v): %d bytes, size %d, %v", r, len(o.Body), o.Size, err)
		}
	}
}

func putIfAbsentMeetsAnObject(t *testing.T, s *suite) {
	key, etag := s.put("k", []byte("first"))
	for _, body := range []string{"second", "first", ""} {
		_, err := s.store.PutIfAbsent(t.Context(), key, []byte(body))
		s.wantErr(err, objectstore.ErrExists, "PutIfAbsent", key)
	}
	s.wantBody(key, []byte("first"))
	if o := s.get(key); o.ETag != etag {
		t.Errorf("the etag changed from %q to %q", etag, o.ETag)
	}
}

// racers is how many goroutines want the same key. Fewer rounds with more of
// them find a check-then-write sooner than the reverse.
const racers, rounds = 32, 4

func putIfAbsentRace(t *testing.T, s *suite) {
	raceForKeys(t, s, func(i int) []byte { return fmt.Appendf(nil, "racer %d", i) })
}

// Equal bytes must not make two winners: two writers that flush equal flights
// would both acknowledge, and one slot would count for two.
func putIfAbsentRaceOfEqualBytes(t *testing.T, s *suite) {
	raceForKeys(t, s, func(int) []byte { return []byte("the same") })
}

func raceForKeys(t *testing.T, s *suite, body func(i int) []byte) {
	for round := range rounds {
		key := s.key("contested-" + strconv.Itoa(round))
		var winner, wins, unknown atomic.Int64
		race(racers, func(i int) {
			err := settle(func() error {
				_, err := s.store.PutIfAbsent(t.Context(), key, body(i))
				if err != nil && objectstore.Unknown(err) {
					unknown.Add(1)
				}
				return err
			})
			switch {
			case err == nil:
				wins.Add(1)
				winner.Store(int64(i))
			default:
				s.wantErr(err, objectstore.ErrExists, "PutIfAbsent", key)
			}
			// Whoever was answered sees the winner's bytes, at once and for ever.
			if o, err := s.store.Get(t.Context(), key); err != nil {
				t.Errorf("Get(%s) after an answered put: %v", key, err)
			} else if err := isOneOf(o.Body, body); err != nil {
				t.Errorf("Get(%s): %v", key, err)
			}
		})
		// An unknown attempt may have won unseen; then nobody need have.
		if n := wins.Load(); n > 1 || n == 0 && unknown.Load() == 0 {
			t.Fatalf("%s: %d of %d PutIfAbsent calls returned nil (%d unknown)", key, n, racers, unknown.Load())
		} else if n == 1 {
			s.wantBody(key, body(int(winner.Load())))
		}
	}
}

func isOneOf(got []byte, body func(i int) []byte) error {
	for i := range racers {
		if bytes.Equal(got, body(i)) {
			return nil
		}
	}
	return fmt.Errorf("%.60q is nobody's body", got)
}

func putIfMatchReplaces(t *testing.T, s *suite) {
	key, etag := s.put("k", []byte("0"))
	for i := 1; i < 6; i++ {
		body := []byte(strconv.Itoa(i))
		next, err := s.store.PutIfMatch(t.Context(), key, body, etag)
		if err != nil {
			t.Fatalf("PutIfMatch %d: %v", i, err)
		}
		if next == etag {
			t.Fatalf("PutIfMatch %d: other bytes, same etag %q", i, etag)
		}
		s.wantBody(key, body)
		if o := s.get(key); o.ETag != next {
			t.Fatalf("Get: etag %q, PutIfMatch returned %q", o.ETag, next)
		}
		_, err = s.store.PutIfMatch(t.Context(), key, []byte("stale"), etag)
		s.wantErr(err, objectstore.ErrMismatch, "PutIfMatch", key)
		etag = next
	}
	_, err := s.store.PutIfAbsent(t.Context(), key, []byte("x"))
	s.wantErr(err, objectstore.ErrExists, "PutIfAbsent", key)
}

func putIfMatchRefuses(t *testing.T, s *suite) {
	key, etag := s.put("k", []byte("body"))
	other, _ := s.put("other", []byte("another body"))
	_, err := s.store.PutIfMatch(t.Context(), other, []byte("x"), etag)
	s.wantErr(err, objectstore.ErrMismatch, "PutIfMatch", other)
	absent := s.key("absent")
	_, err = s.store.PutIfMatch(t.Context(), absent, []byte("x"), etag)
	s.wantErr(err, objectstore.ErrMismatch, "PutIfMatch", absent)
	_, err = s.store.PutIfMatch(t.Context(), key, []byte("x"), "")
	s.wantErr(err, objectstore.ErrMismatch, "PutIfMatch", key)
	_, err = s.store.PutIfMatch(t.Context(), absent, []byte("x"), "")
	s.wantErr(err, objectstore.ErrMismatch, "PutIfMatch", absent)
	if err := s.store.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	_, err = s.store.PutIfMatch(t.Context(), key, []byte("x"), etag)
	s.wantErr(err, objectstore.ErrMismatch, "PutIfMatch", key)
	_, err = s.store.Get(t.Context(), key)
	s.wantErr(err, objectstore.ErrNotFound, "Get", key)
}

func putIfMatchRace(t *testing.T, s *suite) {
	body := func(i int) []byte { return fmt.Appendf(nil, "racer %d", i) }
	key, etag := s.put("contested", []byte("start"))
	for round := range rounds {
		var winner, wins, unknown atomic.Int64
		race(racers, func(i int) {
			err := settle(func() error {
				_, err := s.store.PutIfMatch(t.Context(), key, fmt.Appendf(body(i), " round %d", round), etag)
				if err != nil && objectstore.Unknown(err) {
					unknown.Add(1)
				}
				return err
			})
			if err == nil {
				wins.Add(1)
				winner.Store(int64(i))
				return
			}
			s.wantErr(err, objectstore.ErrMismatch, "PutIfMatch", key)
		})
		if n := wins.Load(); n > 1 || n == 0 && unknown.Load() == 0 {
			t.Fatalf("round %d: %d of %d PutIfMatch calls returned nil (%d unknown)", round, n, racers, unknown.Load())
		} else if n == 1 {
			s.wantBody(key, fmt.Appendf(body(int(winner.Load())), " round %d", round))
		}
		etag = s.get(key).ETag
	}
}

// Read, change, put if match, again when refused: as a counter it shows both a
// lost update and a put that was refused though it landed.
func putIfMatchCounter(t *testing.T, s *suite) {
	const workers, each = 4, 8
	key, _ := s.put("counter", []byte("0"))
	var unknown atomic.Int64
	race(workers, func(int) {
		for done := 0; done < each; {
			o, err := s.store.Get(t.Context(), key)
			if err != nil {
				t.Errorf("Get: %v", err)
				return
			}
			n, err := strconv.Atoi(string(o.Body))
			if err != nil {
				t.Errorf("Get: %v", err)
				return
			}
			_, err = s.store.PutIfMatch(t.Context(), key, []byte(strconv.Itoa(n+1)), o.ETag)
			switch {
			case err == nil:
				done++
			case errors.Is(err, objectstore.ErrMismatch):
			case errors.Is(err, objectstore.ErrUnavailable), errors.Is(err, objectstore.ErrThrottled):
				unknown.Add(1)
			default:
				t.Errorf("PutIfMatch: %v", err)
				return
			}
		}
	})
	n, err := strconv.Atoi(string(s.get(key).Body))
	if most := workers*each + int(unknown.Load()); err != nil || n < workers*each || n > most {
		t.Errorf("%d increments were confirmed and %d are unknown, the counter is %d (%v)", workers*each, unknown.Load(), n, err)
	}
}

func deleteIsIdempotent(t *testing.T, s *suite) {
	key, _ := s.put("d/k", []byte("x"))
	kept, _ := s.put("d/k2", []byte("y"))
	never := s.key("never/there")
	for range 3 {
		if err := s.store.Delete(t.Context(), key, never, key); err != nil {
			t.Fatalf("Delete: %v", err)
		}
		_, err := s.store.Get(t.Context(), key)
		s.wantErr(err, objectstore.ErrNotFound, "Get", key)
	}
	if err := s.store.Delete(t.Context()); err != nil {
		t.Errorf("Delete of nothing: %v", err)
	}
	s.wantBody(kept, []byte("y"))
}

// deleteBatches uses more keys than the thousand that one S3 request takes,
// with objects at the seams.
func deleteBatches(t *testing.T, s *suite) {
	const n = 2100
	there := map[int]bool{0: true, 1: true, 998: true, 999: true, 1000: true, 1001: true, 1999: true, 2000: true, n - 1: true}
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s/batch/%05d", s.folder, i)
		if there[i] {
			s.putAt(keys[i], []byte("x"))
		}
	}
	kept, _ := s.put("batch/kept", []byte("x"))
	if err := settle(func() error { return s.store.Delete(t.Context(), keys...) }); err != nil {
		t.Fatalf("Delete of %d keys: %v", n, err)
	}
	for i := range there {
		_, err := s.store.Get(t.Context(), keys[i])
		s.wantErr(err, objectstore.ErrNotFound, "Get", keys[i])
	}
	s.wantBody(kept, []byte("x"))
}

// deleteBrokenOff ends deletes of many keys anywhere: what is left is whole, and
// a repeat deletes it.
func deleteBrokenOff(t *testing.T, s *suite) {
	const n, apart = 2100, 70
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s/broken/%05d", s.folder, i)
		if i%apart == 0 {
			s.keys <- keys[i]
			s.putAt(keys[i], []byte(keys[i]))
		}
	}
	kept, _ := s.put("broken/kept", []byte("x"))
	for patience := 500 * time.Microsecond; ; patience *= 3 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := s.store.Delete(ctx, keys...)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, objectstore.ErrUnavailable) && !errors.Is(err, objectstore.ErrThrottled) {
			t.Fatalf("Delete that is broken off: %v", err)
		}
		for i := 0; i < n; i += apart {
			o, gerr := s.store.Get(t.Context(), keys[i])
			switch {
			case gerr == nil && err == nil:
				t.Fatalf("%s is there after its delete", keys[i])
			case gerr == nil && string(o.Body) != keys[i], gerr != nil && !errors.Is(gerr, objectstore.ErrNotFound):
				t.Fatalf("%s after a delete that broke off: %q, %v", keys[i], o.Body, gerr)
			}
		}
		s.wantBody(kept, []byte("x"))
		if err == nil {
			return
		}
	}
}

func deletedKeyIsFree(t *testing.T, s *suite) {
	key := s.key("once/more")
	for i := range 5 {
		body := []byte(strconv.Itoa(i))
		s.putAt(key, body)
		s.wantBody(key, body)
		if err := s.store.Delete(t.Context(), key); err != nil {
			t.Fatalf("Delete: %v", err)
		}
	}
	// Deletes of a folder's last object beside puts of its next one. A put may have to
	// be tried again, as any may, and may then meet itself.
	put := func(key, body string) error {
		again := false
		for until := time.Now().Add(time.Minute); ; again = true {
			_, err := s.store.PutIfAbsent(t.Context(), key, []byte(body))
			passes := errors.Is(err, objectstore.ErrUnavailable) || errors.Is(err, objectstore.ErrThrottled)
			switch {
			case again && errors.Is(err, objectstore.ErrExists):
				return nil
			case !passes || time.Now().After(until):
				return err
			}
		}
	}
	race(8, func(i int) {
		key := s.key(fmt.Sprintf("once/busy/%d", i))
		for n := range 10 {
			body := fmt.Sprint(key, n)
			if err := put(key, body); err != nil {
				t.Errorf("PutIfAbsent(%s): %v", key, err)
				return
			}
			if o, err := s.store.Get(t.Context(), key); err != nil || string(o.Body) != body {
				t.Errorf("Get(%s): %q, %v", key, o.Body, err)
			}
			if err := s.store.Delete(t.Context(), key); err != nil {
				t.Errorf("Delete(%s): %v", key, err)
				return
			}
		}
	})
}
