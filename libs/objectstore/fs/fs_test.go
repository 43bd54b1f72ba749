package fs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/objectstoretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustOpen(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func TestContract(t *testing.T) {
	objectstoretest.Run(t, func(t *testing.T) objectstore.Store { return mustOpen(t, t.TempDir()) })
}

func TestContractWithPrefixOnAUsedStore(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	for _, key := range []string{"a", "p/a", "q/b"} {
		if _, err := s.PutIfAbsent(t.Context(), key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	objectstoretest.Run(t, func(t *testing.T) objectstore.Store {
		return objectstore.WithPrefix(mustOpen(t, dir), "p/deep/")
	})
}

// One sync of the file and one of its folder, once the folder is known.
func TestSyncsPerPut(t *testing.T) {
	n := newNode(t)
	put := func(key string) map[string]int {
		t.Helper()
		before := n.disk.counts()
		if _, err := n.store.PutIfAbsent(t.Context(), key, []byte("x")); err != nil {
			t.Fatal(err)
		}
		after := n.disk.counts()
		return map[string]int{"sync": after["sync"] - before["sync"], "syncDir": after["syncDir"] - before["syncDir"]}
	}
	if got := put("a/b/0"); got["sync"] != 1 || got["syncDir"] != 3 {
		t.Errorf("first put in two new folders: %v, want the file, two folders and objects/", got)
	}
	for _, key := range []string{"a/b/1", "a/b/2"} {
		if got := put(key); got["sync"] != 1 || got["syncDir"] != 1 {
			t.Errorf("put in a known folder: %v", got)
		}
	}
	if got := put("a/c/0"); got["sync"] != 1 || got["syncDir"] != 2 {
		t.Errorf("put in a new folder of a known one: %v", got)
	}
	before := n.disk.counts()["syncDir"]
	for _, key := range []string{"a/b/0", "a/b/1", "a/c/0"} {
		if _, err := n.store.Get(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		if _, err := n.store.PutIfAbsent(t.Context(), key, nil); !errors.Is(err, objectstore.ErrExists) {
			t.Fatal(err)
		}
	}
	if after := n.disk.counts()["syncDir"]; after != before {
		t.Errorf("reads of durable objects synced %d folders", after-before)
	}
	var keys []string
	for i := range 100 {
		keys = append(keys, fmt.Sprintf("a/b/%d", i))
	}
	before = n.disk.counts()["syncDir"]
	if err := n.store.Delete(t.Context(), keys...); err != nil {
		t.Fatal(err)
	}
	if after := n.disk.counts()["syncDir"]; after != before+1 {
		t.Errorf("a delete in one folder synced %d times", after-before)
	}
}

func TestSecondOpenIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "another process uses the directory") {
		t.Fatalf("second Open: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, dir)
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(file, "store")); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("Open below a file: %v", err)
	}
}

func TestEmptyFoldersGoAway(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	keys := []string{"a/b/c/d", "a/b/c/e", "a/x"}
	for _, key := range keys {
		if _, err := s.PutIfAbsent(t.Context(), key, nil); err != nil {
			t.Fatal(err)
		}
	}
	for i, left := range []string{"a/b/c", "a", ""} {
		if err := s.Delete(t.Context(), keys[i]); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "objects", left)); err != nil {
			t.Errorf("after the delete of %s: %v", keys[i], err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "objects")); err != nil || len(entries) > 0 {
		t.Errorf("in the end: %v, %v", entries, err)
	}
	if len(s.folders.known) != 1 {
		t.Errorf("the store remembers %d folders", len(s.folders.known))
	}
}

// A call on a key below an object must not take the object for a folder.
func TestObjectIsNotTakenForAFolder(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	if _, err := s.PutIfAbsent(t.Context(), "a", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a/b", "a/b/c"} {
		if _, err := s.PutIfAbsent(t.Context(), key, nil); !errors.Is(err, objectstore.ErrPermanent) {
			t.Errorf("PutIfAbsent(%s): %v, want ErrPermanent", key, err)
		}
		if _, err := s.PutIfMatch(t.Context(), key, nil, "x"); !errors.Is(err, objectstore.ErrMismatch) {
			t.Errorf("PutIfMatch(%s): %v, want ErrMismatch", key, err)
		}
		if err := s.Delete(t.Context(), key); err != nil {
			t.Errorf("Delete(%s): %v", key, err)
		}
	}
	if o, err := s.Get(t.Context(), "a"); err != nil || string(o.Body) != "kept" {
		t.Errorf("Get(a): %q, %v", o.Body, err)
	}
	if _, err := s.PutIfAbsent(t.Context(), "f/o", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutIfAbsent(t.Context(), "f", nil); !errors.Is(err, objectstore.ErrPermanent) {
		t.Errorf("PutIfAbsent of a folder: %v, want ErrPermanent", err)
	}
	if err := s.Delete(t.Context(), "f"); err != nil {
		t.Errorf("Delete of a folder: %v", err)
	}
	if _, err := s.Get(t.Context(), "f/o"); err != nil {
		t.Error(err)
	}
}

// While the directory is away nothing is known of any object: none is said to be
// absent, and no write makes a new directory that parts from the old one.
func TestDirectoryMovedAway(t *testing.T) {
	for _, folder := range []string{".", "objects", "tmp"} {
		for _, replaced := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s replaced %v", folder, replaced), func(t *testing.T) {
				root := filepath.Join(t.TempDir(), "root")
				s := mustOpen(t, root)
				put := func(key string) error {
					_, err := s.PutIfAbsent(t.Context(), key, []byte(key))
					return err
				}
				for _, key := range []string{"a/1", "b"} {
					if err := put(key); err != nil {
						t.Fatal(err)
					}
				}
				from, away := filepath.Join(root, folder), filepath.Join(filepath.Dir(root), "away")
				if err := os.Rename(from, away); err != nil {
					t.Fatal(err)
				}
				if replaced {
					// As an empty mount point shows up when its file system goes.
					if err := os.MkdirAll(filepath.Join(root, "objects"), 0o700); err != nil {
						t.Fatal(err)
					}
					if err := os.MkdirAll(filepath.Join(root, "tmp"), 0o700); err != nil {
						t.Fatal(err)
					}
				}
				if folder != "tmp" {
					for _, key := range []string{"a/1", "b", "new"} {
						if _, err := s.Get(t.Context(), key); !errors.Is(err, objectstore.ErrUnavailable) || !strings.Contains(err.Error(), "bring it back") {
							t.Errorf("Get(%s): %v", key, err)
						}
						if err := s.Delete(t.Context(), key); !errors.Is(err, objectstore.ErrUnavailable) {
							t.Errorf("Delete(%s): %v", key, err)
						}
						if _, err := s.PutIfMatch(t.Context(), key, nil, "x"); !errors.Is(err, objectstore.ErrUnavailable) {
							t.Errorf("PutIfMatch(%s): %v", key, err)
						}
					}
					if infos, err := s.List(t.Context(), "", "", 10); !errors.Is(err, objectstore.ErrUnavailable) && !replaced {
						t.Errorf("List: %v, %v", infos, err)
					}
				}
				if folder != "tmp" || !replaced {
					// Twice: a failure must not make it forget what it knows.
					for range 2 {
						for _, key := range []string{"a/2", "new", "c/d/e"} {
							if err := put(key); !errors.Is(err, objectstore.ErrUnavailable) {
								t.Errorf("PutIfAbsent(%s): %v", key, err)
							}
						}
					}
				}
				if replaced {
					if err := os.RemoveAll(from); err != nil {
						t.Fatal(err)
					}
				}
				// It fails if a write has made the directory again.
				if err := os.Rename(away, from); err != nil {
					t.Fatal(err)
				}
				for _, key := range []string{"a/1", "b"} {
					if o, err := s.Get(t.Context(), key); err != nil || string(o.Body) != key {
						t.Errorf("Get(%s): %q, %v", key, o.Body, err)
					}
				}
				for _, key := range []string{"a/2", "new2", "c/d/e2"} {
					if err := put(key); err != nil {
						t.Errorf("PutIfAbsent(%s): %v", key, err)
					}
				}
			})
		}
	}
}

func TestCallsAfterCloseAreRefused(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutIfAbsent(t.Context(), "k", nil); !errors.Is(err, objectstore.ErrPermanent) {
		t.Errorf("PutIfAbsent: %v", err)
	}
	if _, err := s.List(t.Context(), "", "", 1); !errors.Is(err, objectstore.ErrPermanent) {
		t.Errorf("List: %v", err)
	}
}

// Equal bytes within one tick of the clock are two versions.
func TestVersionNeverComesBack(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	etag, err := s.PutIfAbsent(t.Context(), "k", []byte("A"))
	if err != nil {
		t.Fatal(err)
	}
	// A clock that stepped back: what is there was written in the future.
	future := time.Now().Add(time.Hour)
	if err := os.Chtimes(s.path("k"), time.Time{}, future); err != nil {
		t.Fatal(err)
	}
	o, err := s.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[objectstore.ETag]bool{etag: true, o.ETag: true}
	etag = o.ETag
	for range 50 {
		if etag, err = s.PutIfMatch(t.Context(), "k", []byte("B"), etag); err != nil {
			t.Fatal(err)
		}
		if seen[etag] {
			t.Fatalf("version %s came back", etag)
		}
		seen[etag] = true
	}
}

func TestForgetsIdleFolders(t *testing.T) {
	f := newFolders(newPowerDisk(), func(string) string { return "/nowhere" })
	held := f.enter("held/on")
	f.changing(held, "k")
	f.changed(held, "k", true)
	f.leave("held/on", false)
	for i := range 2 * maxFolders {
		dir := fmt.Sprintf("d%d", i)
		f.enter(dir)
		f.leave(dir, false)
	}
	if len(f.known) > maxFolders {
		t.Errorf("%d folders are remembered", len(f.known))
	}
	if f.known["held/on"] != held {
		t.Error("a folder with a name that is not durable was forgotten")
	}
}

func BenchmarkPutIfAbsent64KiB(b *testing.B) {
	s := mustOpen(b, b.TempDir())
	body := make([]byte, 64<<10)
	var n atomic.Int64
	b.SetBytes(int64(len(body)))
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.PutIfAbsent(b.Context(), fmt.Sprintf("chain/%d", n.Add(1)), body); err != nil {
				b.Fatal(err)
			}
		}
	})
}
