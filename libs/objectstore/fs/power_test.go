package fs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nova-stream/nova/libs/objectstore"
)

// node is a store on a powerDisk, with what its callers were told.
type node struct {
	t     *testing.T
	dir   string
	disk  *powerDisk
	store *Store
	told  map[string]string // what must survive
	gone  map[string]bool   // what must not come back
}

func newNode(t *testing.T) *node {
	n := &node{t: t, dir: t.TempDir(), disk: newPowerDisk(), told: map[string]string{}, gone: map[string]bool{}}
	n.start()
	t.Cleanup(func() { _ = n.store.Close() })
	return n
}

func (n *node) start() {
	n.t.Helper()
	var err error
	if n.store, err = open(n.dir, n.disk); err != nil {
		n.t.Fatal(err)
	}
}

// restart is a kill of the process: all that is visible stays.
func (n *node) restart() {
	n.t.Helper()
	if err := n.store.Close(); err != nil {
		n.t.Fatal(err)
	}
	n.start()
}

// check compares what was told with what the loss of power would leave.
func (n *node) check(when string) {
	n.t.Helper()
	left := n.disk.survivors(n.dir)
	for key, body := range n.told {
		if left[key] != body {
			n.t.Errorf("%s: told that %s is %q, a loss of power leaves %q", when, key, body, left[key])
		}
	}
	for key := range n.gone {
		if body, ok := left[key]; ok {
			n.t.Errorf("%s: told that %s is deleted, a loss of power brings back %q", when, key, body)
		}
	}
	for key, body := range left {
		if body == "torn" {
			n.t.Errorf("%s: a loss of power leaves a part of %s", when, key)
		}
	}
}

func (n *node) tell(key, body string) {
	n.told[key] = body
	delete(n.gone, key)
}

func (n *node) put(ctx context.Context, key, body string) error {
	delete(n.gone, key) // it may come back from now on
	_, err := n.store.PutIfAbsent(ctx, key, []byte(body))
	if err == nil || errors.Is(err, objectstore.ErrExists) {
		n.tell(key, body)
	}
	return ignore(err, objectstore.ErrExists)
}

func (n *node) replace(ctx context.Context, key, from, to string) error {
	o, err := n.store.Get(ctx, key)
	if err != nil {
		return err
	}
	n.tell(key, string(o.Body))
	if string(o.Body) == to {
		return nil
	}
	if string(o.Body) != from {
		n.t.Errorf("%s is %q, neither %q nor %q", key, o.Body, from, to)
	}
	delete(n.told, key) // it may be either from now on
	if _, err := n.store.PutIfMatch(ctx, key, []byte(to), o.ETag); err != nil {
		return err
	}
	n.tell(key, to)
	return nil
}

func (n *node) remove(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		delete(n.told, key)
	}
	if err := n.store.Delete(ctx, keys...); err != nil {
		return err
	}
	for _, key := range keys {
		n.gone[key] = true
	}
	return nil
}

func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}

// script is a sequence that meets every branch: new folders, shared ones, ones
// that go away and come back. Each step may be repeated until it succeeds.
func (n *node) script(ctx context.Context) []func() error {
	return []func() error{
		func() error { return n.put(ctx, "a/b/0", "zero") },
		func() error { return n.put(ctx, "a/b/1", "one") },
		func() error { return n.put(ctx, "a/c/d/0", "deep") },
		func() error { return n.put(ctx, "top", "top") },
		func() error { return n.replace(ctx, "a/b/0", "zero", "ZERO") },
		func() error { return n.remove(ctx, "a/b/1", "a/c/d/0", "not/there") },
		func() error { return n.put(ctx, "a/c/d/1", "again") },
		func() error { return n.remove(ctx, "a/c/d/1") },
		func() error { return n.put(ctx, "a/c/2", "sibling") },
	}
}

// wantEnd checks the end of the script. An empty folder may stay where the
// process died before its removal.
func (n *node) wantEnd(ctx context.Context, killed bool) {
	n.t.Helper()
	for key, body := range map[string]string{"a/b/0": "ZERO", "top": "top", "a/c/2": "sibling"} {
		o, err := n.store.Get(ctx, key)
		if err != nil || string(o.Body) != body {
			n.t.Errorf("in the end %s is %q, %v; want %q", key, o.Body, err, body)
			continue
		}
		n.tell(key, body)
	}
	n.check("in the end")
	infos, err := n.store.List(ctx, "", "", 1000)
	if err != nil || len(infos) != 3 {
		n.t.Errorf("in the end there are %v, %v", infos, err)
	}
	for _, dir := range []string{"tmp", "objects/a/c/d", "objects/not"} {
		entries, err := os.ReadDir(filepath.Join(n.dir, dir))
		if len(entries) > 0 || err == nil && dir != "tmp" && !killed {
			n.t.Errorf("in the end %s holds %v, %v", dir, entries, err)
		}
	}
}

// The process is killed before each step in turn, restarted, and goes on with
// the operation it was at. At no time would a loss of power take what was told.
func TestKilledAtEachStep(t *testing.T) {
	for at := 1; ; at++ {
		n := newNode(t)
		killed, dead := false, false
		n.disk.setHook(func(step int, _, _ string) error {
			if step >= at {
				dead = true
				return errKilled
			}
			return nil
		})
		for i := range n.script(t.Context()) {
			err := n.script(t.Context())[i]()
			n.check(fmt.Sprintf("killed at %d, operation %d", at, i))
			if killed && err != nil {
				t.Fatalf("killed at %d, operation %d after the restart: %v", at, i, err)
			}
			if killed || !dead {
				continue
			}
			killed = true
			n.disk.setHook(nil)
			n.restart()
			// Whatever the next life is told is durable when it is told, also
			// of what the last one left half done.
			for _, key := range []string{"a/b/0", "a/b/1", "a/c/d/0", "top", "a/c/d/1", "a/c/2"} {
				if o, err := n.store.Get(t.Context(), key); err == nil {
					n.tell(key, string(o.Body))
				} else if !errors.Is(err, objectstore.ErrNotFound) {
					t.Errorf("killed at %d: Get(%s): %v", at, key, err)
				}
				n.check(fmt.Sprintf("killed at %d, read %s", at, key))
			}
			if err := n.script(t.Context())[i](); err != nil {
				t.Fatalf("killed at %d, operation %d repeated: %v", at, i, err)
			}
			n.check(fmt.Sprintf("killed at %d, operation %d repeated", at, i))
		}
		n.wantEnd(t.Context(), killed)
		if !killed {
			if at < 40 {
				t.Errorf("the script has only %d steps", at)
			}
			return
		}
		if t.Failed() {
			return
		}
	}
}

// Each step in turn fails twice as on a sick disk. The operation says so, and
// succeeds once the disk is well.
func TestEachStepFails(t *testing.T) {
	errnos := []syscall.Errno{syscall.ENOSPC, syscall.EROFS, syscall.EACCES, syscall.EMFILE}
	advice := map[syscall.Errno]string{
		syscall.ENOSPC: "free space",
		syscall.EROFS:  "remount it read-write",
		syscall.EACCES: "let user id",
		syscall.EMFILE: "ulimit -n",
		syscall.EIO:    "kernel log",
	}
	for at, last := 1, false; !last; at++ {
		// EIO alone leaves open whether the step was done.
		for _, errno := range []syscall.Errno{syscall.EIO, errnos[at%len(errnos)]} {
			do := advice[errno]
			n := newNode(t)
			fired := 0
			n.disk.setHook(func(step int, op, path string) error {
				if step < at || fired == 2 {
					return nil
				}
				fired++
				return errno
			})
			for i := range n.script(t.Context()) {
				for try := 0; ; try++ {
					err := n.script(t.Context())[i]()
					n.check(fmt.Sprintf("%v at %d, operation %d", errno, at, i))
					if err == nil {
						break
					}
					if !errors.Is(err, objectstore.ErrUnavailable) || !strings.Contains(err.Error(), do) || !strings.Contains(err.Error(), n.dir) {
						t.Errorf("%v at %d, operation %d: %v; want ErrUnavailable with the path and %q", errno, at, i, err, do)
					}
					if try == 4 {
						t.Fatalf("%v at %d: operation %d does not recover: %v", errno, at, i, err)
					}
				}
			}
			last = fired == 0
			// A temporary file or an empty folder may be left where its removal failed.
			n.disk.setHook(nil)
			n.restart()
			for key, body := range map[string]string{"a/b/0": "ZERO", "top": "top", "a/c/2": "sibling"} {
				if o, err := n.store.Get(t.Context(), key); err != nil || string(o.Body) != body {
					t.Errorf("%v at %d: %s is %q, %v", errno, at, key, o.Body, err)
				}
			}
			if entries, err := os.ReadDir(filepath.Join(n.dir, "tmp")); err != nil || len(entries) > 0 {
				t.Errorf("%v at %d: Open left %v in tmp, %v", errno, at, entries, err)
			}
			if t.Failed() {
				return
			}
		}
	}
}

// Many callers on few keys, syncs failing at random: whoever is told of an
// object, in any way, is told of a durable one.
func TestConcurrentCallersAreToldOfDurableObjectsOnly(t *testing.T) {
	n := newNode(t)
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(7, 7))
	random := func(k int) int {
		mu.Lock()
		defer mu.Unlock()
		return rng.IntN(k)
	}
	n.disk.setHook(func(_ int, op, _ string) error {
		if op == "syncDir" && random(3) == 0 {
			return syscall.EIO
		}
		return nil
	})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 300 {
				key := fmt.Sprintf("d%d/e%d/%d", random(3), random(2), random(40))
				var err error
				if random(2) == 0 {
					_, err = n.store.PutIfAbsent(t.Context(), key, []byte(key))
					err = ignore(err, objectstore.ErrExists)
				} else {
					_, err = n.store.GetRange(t.Context(), key, objectstore.Range{Offset: -1})
				}
				switch {
				case errors.Is(err, objectstore.ErrNotFound), errors.Is(err, objectstore.ErrUnavailable):
				case err != nil:
					t.Error(err)
				default:
					if left := n.disk.survivors(n.dir); left[key] != key {
						t.Errorf("told of %s, a loss of power leaves %q", key, left[key])
					}
				}
			}
		})
	}
	wg.Wait()
}

// The number of undecided names stays bounded while syncs fail.
func TestNoNewNamesInAFolderThatCannotBeSynced(t *testing.T) {
	n := newNode(t)
	n.disk.setHook(func(_ int, op, path string) error {
		if op == "syncDir" {
			return syscall.EIO
		}
		return nil
	})
	for i := range 20 {
		_, err := n.store.PutIfAbsent(t.Context(), fmt.Sprintf("a/%d", i), nil)
		if !errors.Is(err, objectstore.ErrUnavailable) {
			t.Fatalf("put %d: %v, want ErrUnavailable", i, err)
		}
	}
	if infos, err := n.store.List(t.Context(), "", "", 1000); err != nil || len(infos) > 1 {
		t.Errorf("%d objects are visible, %v; want at most 1", len(infos), err)
	}
	n.disk.setHook(nil)
	if _, err := n.store.PutIfAbsent(t.Context(), "a/0", nil); !errors.Is(err, objectstore.ErrExists) {
		t.Errorf("the undecided put repeated: %v, want ErrExists", err)
	}
	if _, err := n.store.PutIfAbsent(t.Context(), "a/1", nil); err != nil {
		t.Errorf("put after the disk got well: %v", err)
	}
}
