package objectstoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/objectstore"
)

// A reader meets a replaced object whole, the old or the new one.
func readersSeeWholeVersions(t *testing.T, s *suite) {
	version := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i)}, 64<<10+i) }
	key, etag := s.put("k", version(0))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error)
	const readers = 4
	for range readers {
		go func() {
			var err error
			for err == nil && ctx.Err() == nil {
				var o objectstore.Object
				if o, err = s.store.Get(t.Context(), key); err == nil && !bytes.Equal(o.Body, version(len(o.Body)-64<<10)) {
					err = fmt.Errorf("a reader saw %d bytes of a mixed version", len(o.Body))
				}
			}
			done <- err
		}()
	}
	for i := 1; i < 10; i++ {
		var err error
		if etag, err = s.store.PutIfMatch(t.Context(), key, version(i), etag); err != nil {
			t.Errorf("PutIfMatch: %v", err)
			break
		}
	}
	stop()
	for range readers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func readYourWrites(t *testing.T, s *suite) {
	// Asked before it is there, as a store may remember that it was not.
	race(8, func(i int) {
		for j := range 8 {
			key := s.key(fmt.Sprintf("r/%d-%d", i, j))
			if _, err := s.store.Get(t.Context(), key); !errors.Is(err, objectstore.ErrNotFound) {
				t.Errorf("Get(%s) before the put: %v", key, err)
			}
			if _, err := s.store.PutIfAbsent(t.Context(), key, []byte(key)); err != nil {
				t.Errorf("PutIfAbsent(%s): %v", key, err)
				return
			}
			if o, err := s.store.Get(t.Context(), key); err != nil || string(o.Body) != key {
				t.Errorf("Get(%s): %q, %v", key, o.Body, err)
			}
			if o, err := s.store.GetRange(t.Context(), key, objectstore.Range{Offset: -3}); err != nil || string(o.Body) != key[len(key)-3:] {
				t.Errorf("GetRange(%s): %q, %v", key, o.Body, err)
			}
		}
	})
	infos, err := s.store.List(t.Context(), s.folder+"/r/", "", 1000)
	if err != nil || len(infos) != 64 {
		t.Errorf("List after 64 puts: %d objects, %v", len(infos), err)
	}
}

func ranges(t *testing.T, s *suite) {
	body := []byte("0123456789")
	key, etag := s.put("digits", body)
	for _, c := range []struct {
		offset, length int64
		want           string
		err            error
	}{
		{0, 0, "0123456789", nil},
		{0, 1, "0", nil},
		{0, 10, "0123456789", nil},
		{0, 11, "0123456789", nil},
		{3, 4, "3456", nil},
		{3, 0, "3456789", nil},
		{9, 0, "9", nil},
		{9, 1, "9", nil},
		{9, 1000, "9", nil},
		{1, math.MaxInt64, "123456789", nil},
		{10, 0, "", objectstore.ErrRange},
		{10, 1, "", objectstore.ErrRange},
		{11, 5, "", objectstore.ErrRange},
		{1 << 40, 1, "", objectstore.ErrRange},
		{-1, 0, "9", nil},
		{-3, 0, "789", nil},
		{-3, 1, "789", nil},
		{-10, 0, "0123456789", nil},
		{-11, 0, "0123456789", nil},
		{-1 << 40, 0, "0123456789", nil},
		{0, -1, "", objectstore.ErrPermanent},
	} {
		o, err := s.store.GetRange(t.Context(), key, objectstore.Range{Offset: c.offset, Length: c.length})
		if c.err != nil {
			s.wantErr(err, c.err, "GetRange", key)
			continue
		}
		if err != nil || string(o.Body) != c.want || o.Size != 10 || o.ETag != etag {
			t.Errorf("GetRange(%d, %d) = %q, size %d, etag %q, %v; want %q, 10, %q", c.offset, c.length, o.Body, o.Size, o.ETag, err, c.want, etag)
		}
	}
}

func notFound(t *testing.T, s *suite) {
	there, _ := s.put("there/k", []byte("x"))
	for _, key := range []string{s.key("nowhere"), s.key("no/such/folder"), s.folder + "/there", there + "/below", s.folder + "/ther", there + "k"} {
		_, err := s.store.Get(t.Context(), key)
		s.wantErr(err, objectstore.ErrNotFound, "Get", key)
		_, err = s.store.GetRange(t.Context(), key, objectstore.Range{Length: 1})
		s.wantErr(err, objectstore.ErrNotFound, "GetRange", key)
		if err := s.store.Delete(t.Context(), key); err != nil {
			t.Errorf("Delete(%s): %v", key, err)
		}
	}
	s.wantBody(there, []byte("x"))
}

// listed returns the listed keys without the test's folder.
func (s *suite) listed(prefix, after string, limit int) []string {
	s.t.Helper()
	if after != "" {
		after = s.folder + "/" + after
	}
	infos, err := s.store.List(s.t.Context(), s.folder+"/"+prefix, after, limit)
	if err != nil {
		s.t.Fatalf("List(%q, %q, %d): %v", prefix, after, limit, err)
	}
	names := []string{}
	for _, info := range infos {
		name, ok := strings.CutPrefix(info.Key, s.folder+"/")
		if !ok {
			s.t.Errorf("List(%q) returned %q of another folder", prefix, info.Key)
		}
		if want := int64(len(name)); info.Size != want {
			s.t.Errorf("List: %s has %d bytes, want %d", name, info.Size, want)
		}
		names = append(names, name)
	}
	return names
}

// Bytes around the slash: '-' and '.' sort before it, digits and letters after,
// so that an order by folders is not the order of keys.
var listNames = []string{"a-b", "a-b/c", "a.b", "a/0", "a/b/c", "a/b/d", "a/b0", "a/b.x", "a0", "aa/a", "b", "b-", "b.", "b0/x/y", "Z", "_z"}

func (s *suite) putListNames() []string {
	s.t.Helper()
	sorted := slices.Clone(listNames)
	// "a-b" beside "a-b/c" would be a folder of it.
	sorted = slices.DeleteFunc(sorted, func(n string) bool { return n == "a-b" })
	for _, name := range sorted {
		s.put(name, []byte(name))
	}
	slices.Sort(sorted)
	return sorted
}

func listOrder(t *testing.T, s *suite) {
	sorted := s.putListNames()
	if got := s.listed("", "", 1000); !slices.Equal(got, sorted) {
		t.Errorf("List: %q, want %q", got, sorted)
	}
	if err := s.store.Delete(t.Context(), s.folder+"/a/b/c", s.folder+"/b0/x/y"); err != nil {
		t.Fatal(err)
	}
	sorted = slices.DeleteFunc(sorted, func(n string) bool { return n == "a/b/c" || n == "b0/x/y" })
	if got := s.listed("", "", 1000); !slices.Equal(got, sorted) {
		t.Errorf("List after a delete: %q, want %q", got, sorted)
	}
}

func listPages(t *testing.T, s *suite) {
	sorted := s.putListNames()
	for limit := 1; limit <= len(sorted)+1; limit++ {
		var got []string
		for after := ""; ; {
			page := s.listed("", after, limit)
			if len(page) > limit {
				t.Fatalf("List(limit %d) returned %d objects", limit, len(page))
			}
			got = append(got, page...)
			if len(page) < limit {
				break
			}
			if len(got) > len(sorted) {
				t.Fatalf("List by %d does not end: %q", limit, got)
			}
			after = page[len(page)-1]
		}
		if !slices.Equal(got, sorted) {
			t.Errorf("List by %d: %q, want %q", limit, got, sorted)
		}
	}
	// after need not be a key, nor lie under the prefix.
	for _, after := range []string{"a", "a/", "a/b", "a/b/", "a/b/c", "a/b/cc", "a/zz", "b-", "b0", "b0/x/y", "zzz", "0", "a-b/c/d"} {
		want := []string{}
		for _, name := range sorted {
			if name > after {
				want = append(want, name)
			}
		}
		if got := s.listed("", after, 1000); !slices.Equal(got, want) {
			t.Errorf("List(after %q): %q, want %q", after, got, want)
		}
	}
	if got := s.listed("a/b/", "0", 1000); !slices.Equal(got, []string{"a/b/c", "a/b/d"}) {
		t.Errorf("List(after before the prefix): %q", got)
	}
	if got := s.listed("a/b/", "b", 1000); len(got) != 0 {
		t.Errorf("List(after behind the prefix): %q", got)
	}
}

func listPrefixes(t *testing.T, s *suite) {
	sorted := s.putListNames()
	for _, prefix := range []string{"", "a", "a/", "a/b", "a/b/", "a/b/c", "a/b/c/", "a/b/cc", "a-", "b", "b0/x", "nothing", "Z", "a.", "a/.", "a/b."} {
		want := []string{}
		for _, name := range sorted {
			if strings.HasPrefix(name, prefix) {
				want = append(want, name)
			}
		}
		if got := s.listed(prefix, "", 1000); !slices.Equal(got, want) {
			t.Errorf("List(%q): %q, want %q", prefix, got, want)
		}
	}
}

func invalidArguments(t *testing.T, s *suite) {
	ctx, body := t.Context(), []byte("x")
	for _, key := range []string{
		"", "/a", "a/", "a//b", ".", "..", "../a", "a/./b", "a b", "a\nb", "a*b", "\xff", "é", `a\b`, "a%2Fb",
		strings.Repeat("k", objectstore.MaxSegmentBytes+1), strings.Repeat("abcd/", objectstore.MaxKeyBytes/5) + "e",
	} {
		// Quoted keys are named in quoted form.
		named := strings.Trim(fmt.Sprintf("%q", key), `"`)
		_, err := s.store.PutIfAbsent(ctx, key, body)
		s.wantErr(err, objectstore.ErrPermanent, "PutIfAbsent", named)
		_, err = s.store.PutIfMatch(ctx, key, body, "etag")
		s.wantErr(err, objectstore.ErrPermanent, "PutIfMatch", named)
		_, err = s.store.Get(ctx, key)
		s.wantErr(err, objectstore.ErrPermanent, "Get", named)
		_, err = s.store.GetRange(ctx, key, objectstore.Range{})
		s.wantErr(err, objectstore.ErrPermanent, "GetRange", named)
		err = s.store.Delete(ctx, s.folder+"/fine", key)
		s.wantErr(err, objectstore.ErrPermanent, "Delete", named)
	}
	for _, limit := range []int{-1, 0, 1001} {
		_, err := s.store.List(ctx, s.folder+"/", "", limit)
		s.wantErr(err, objectstore.ErrPermanent, "List", s.folder)
	}
	for _, prefix := range []string{"/", "a//b", "../", "a*"} {
		_, err := s.store.List(ctx, prefix, "", 1)
		s.wantErr(err, objectstore.ErrPermanent, "List", prefix)
	}
}

// A hundred bytes are left for the prefix the store may add.
func longKeys(t *testing.T, s *suite) {
	folder := strings.Repeat(strings.Repeat("d", 99)+"/", 7)
	key := s.key(folder + strings.Repeat("f", objectstore.MaxKeyBytes-100-len(s.folder)-1-len(folder)))
	s.putAt(key, []byte("deep"))
	s.wantBody(key, []byte("deep"))
	infos, err := s.store.List(t.Context(), key[:len(key)-1], "", 2)
	if err != nil || len(infos) != 1 || infos[0].Key != key {
		t.Errorf("List: %v, %v", infos, err)
	}
	long, _ := s.put(strings.Repeat("s", objectstore.MaxSegmentBytes), []byte("wide"))
	s.wantBody(long, []byte("wide"))
}

// Keys that a store might fold together, or take for its own.
func similarKeys(t *testing.T, s *suite) {
	names := []string{"case", "CASE", "Case", "dot.", "dot", "dot..", ".hidden", ".tmp/x", "tmp/x", "objects/x", "...", "lock", "-", "--", "_", "0", "00", "000"}
	keys := map[string]string{}
	for _, name := range names {
		keys[name], _ = s.put(name, []byte(name))
	}
	for name, key := range keys {
		s.wantBody(key, []byte(name))
	}
	slices.Sort(names)
	if got := s.listed("", "", 1000); !slices.Equal(got, names) {
		t.Errorf("List: %q, want %q", got, names)
	}
}

func bodiesAreNotAliased(t *testing.T, s *suite) {
	scribble := func(b []byte) {
		b = b[:cap(b)]
		for i := range b {
			b[i] = '!'
		}
	}
	body := append(make([]byte, 0, 64), "written"...)
	key := s.key("k")
	etag := s.putAt(key, body)
	if string(body) != "written" {
		t.Errorf("PutIfAbsent changed its body to %q", body)
	}
	scribble(body)
	s.wantBody(key, []byte("written"))
	scribble(s.get(key).Body)
	s.wantBody(key, []byte("written"))
	o, err := s.store.GetRange(t.Context(), key, objectstore.Range{Offset: 1, Length: 2})
	if err != nil {
		t.Fatal(err)
	}
	scribble(o.Body)
	s.wantBody(key, []byte("written"))
	body = append(body[:0], "replaced"...)
	if _, err := s.store.PutIfMatch(t.Context(), key, body, etag); err != nil {
		t.Fatal(err)
	}
	scribble(body)
	s.wantBody(key, []byte("replaced"))
	keys := []string{s.key("x"), s.key("y")}
	if err := s.store.Delete(t.Context(), keys...); err != nil || !slices.Equal(keys, []string{s.folder + "/x", s.folder + "/y"}) {
		t.Errorf("Delete changed its keys to %q, %v", keys, err)
	}
}

func endedContext(t *testing.T, s *suite) {
	key, etag := s.put("k", []byte("x"))
	canceled, cancel := context.WithCancelCause(t.Context())
	// A cause is for whoever cancels; the error wraps the context's own answer.
	cancel(objectstore.ErrExists)
	expired, cancel2 := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel2()
	for _, ctx := range []context.Context{canceled, expired} {
		absent := s.key("absent")
		_, err := s.store.PutIfAbsent(ctx, absent, []byte("x"))
		s.wantErr(err, ctx.Err(), "PutIfAbsent", absent)
		_, err = s.store.PutIfMatch(ctx, key, []byte("y"), etag)
		s.wantErr(err, ctx.Err(), "PutIfMatch", key)
		_, err = s.store.Get(ctx, key)
		s.wantErr(err, ctx.Err(), "Get", key)
		_, err = s.store.GetRange(ctx, key, objectstore.Range{})
		s.wantErr(err, ctx.Err(), "GetRange", key)
		s.wantErr(s.store.Delete(ctx, key), ctx.Err(), "Delete", key)
		_, err = s.store.List(ctx, s.folder, "", 1)
		s.wantErr(err, ctx.Err(), "List", s.folder)
	}
}

func closeTwice(t *testing.T, s *suite) {
	key, _ := s.put("k", []byte("x"))
	if err := settle(func() error { return s.store.Delete(t.Context(), key) }); err != nil {
		t.Fatal(err)
	}
	s.closed = true
	for range 2 {
		if err := s.store.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
}
