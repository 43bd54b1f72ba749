package bbolt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/nova-stream/nova/libs/metastore"
)

// gate is a commit that a test holds, and lets succeed or fail.
type gate struct {
	entered chan struct{}
	results chan error
}

func gated(s *Store) gate {
	g := gate{entered: make(chan struct{}), results: make(chan error)}
	s.commit = func(tx *bolt.Tx) error {
		g.entered <- struct{}{}
		if err := <-g.results; err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}
	return g
}

func openGated(t *testing.T, dir string) (*Store, gate) {
	t.Helper()
	s, err := Open(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	g := gated(s)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s, g
}

// later runs a Put and returns where its error will come.
func later(s *Store, path string, expected metastore.Version) <-chan error {
	out := make(chan error, 1)
	go func() {
		_, err := s.Put(context.Background(), metastore.Key{Path: path}, []byte("x"), expected)
		out <- err
	}()
	return out
}

// A refusal judged by a write of the same batch is a promise about that write:
// it must not be given when the batch is lost.
func TestFailedCommitFailsTheWholeBatch(t *testing.T) {
	s, err := Open(Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	full := &os.PathError{Op: "write", Path: "metastore.db", Err: syscall.ENOSPC}
	s.commit = func(tx *bolt.Tx) error { return errors.Join(full, tx.Rollback()) }
	put := func() *write {
		return &write{
			ctx: t.Context(), op: metastore.OpPut, key: metastore.Key{Path: "contested"},
			expected: metastore.Absent, done: make(chan struct{}),
		}
	}
	batch := []*write{put(), put()}
	err = s.apply(batch)
	if batch[0].err != nil || !errors.Is(batch[1].err, metastore.ErrConflict) {
		t.Fatalf("outcomes in the transaction: %v, %v; want a winner and a conflict", batch[0].err, batch[1].err)
	}
	s.answer(batch, err)
	for _, w := range batch {
		<-w.done
		if !errors.Is(w.err, metastore.ErrUnavailable) || errors.Is(w.err, metastore.ErrConflict) ||
			!strings.Contains(w.err.Error(), syscall.ENOSPC.Error()) || !strings.Contains(w.err.Error(), s.dir) {
			t.Errorf("Put in a failed batch: %v, want ErrUnavailable with directory and cause", w.err)
		}
	}
	s.commit = (*bolt.Tx).Commit
	if err := <-later(s, "contested", metastore.Absent); err != nil {
		t.Errorf("Put after the fault ended: %v", err)
	}
}

func TestFailedFsyncRewritesTheFile(t *testing.T) {
	dir := t.TempDir()
	s, g := openGated(t, dir)
	kept := later(s, "kept", metastore.Absent)
	<-g.entered
	g.results <- nil
	if err := <-kept; err != nil {
		t.Fatal(err)
	}
	row, err := s.Get(t.Context(), metastore.Key{Path: "kept"})
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(filepath.Join(dir, FileName))
	if err != nil {
		t.Fatal(err)
	}

	lost := later(s, "lost", metastore.Absent)
	<-g.entered
	g.results <- syscall.EIO // what fdatasync returns
	if err := <-lost; !errors.Is(err, metastore.ErrUnavailable) {
		t.Fatalf("Put whose fsync failed: %v, want ErrUnavailable", err)
	}
	if _, err := s.Get(t.Context(), metastore.Key{Path: "kept"}); err != nil {
		t.Fatalf("Get while the file is suspect: %v", err)
	}

	next := later(s, "kept", row.Version)
	<-g.entered
	g.results <- nil
	if err := <-next; err != nil {
		t.Fatalf("Put after the fault ended: %v", err)
	}
	after, err := os.Stat(filepath.Join(dir, FileName))
	if err != nil {
		t.Fatal(err)
	}
	if os.SameFile(before, after) {
		t.Error("the file whose fsync failed is still in use")
	}
	// The new file is locked from its first moment.
	if _, err := Open(Config{Dir: dir, LockTimeout: 10 * time.Millisecond}); !errors.Is(err, metastore.ErrUnavailable) {
		t.Errorf("Open beside a healed store: %v, want ErrUnavailable", err)
	}
	now, err := s.Get(t.Context(), metastore.Key{Path: "kept"})
	if err != nil || now.Version <= row.Version {
		t.Errorf("version after healing is %v, %v; before it was %v", now.Version, err, row.Version)
	}
}

func TestFailedHealIsTriedAgain(t *testing.T) {
	dir := t.TempDir()
	s, g := openGated(t, dir)
	lost := later(s, "row", metastore.Absent)
	<-g.entered
	g.results <- syscall.EIO
	if err := <-lost; !errors.Is(err, metastore.ErrUnavailable) {
		t.Fatal(err)
	}

	// A directory in the copy's place, with something in it, cannot be replaced.
	if err := os.MkdirAll(filepath.Join(s.copyPath(), "in-the-way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := <-later(s, "row", metastore.Absent); !errors.Is(err, metastore.ErrUnavailable) || !strings.Contains(err.Error(), "copy the file") {
		t.Fatalf("Put that could not heal: %v, want ErrUnavailable that says so", err)
	}
	if err := os.RemoveAll(s.copyPath()); err != nil {
		t.Fatal(err)
	}
	next := later(s, "row", metastore.Absent)
	<-g.entered
	g.results <- nil
	if err := <-next; err != nil {
		t.Fatalf("Put after the fault ended: %v", err)
	}
}

// A write given up before the committer takes it must not land later.
func TestGivingUpInTheQueueHasNoEffect(t *testing.T) {
	s, g := openGated(t, t.TempDir())
	first := later(s, "first", metastore.Absent)
	<-g.entered
	ctx, cancel := context.WithCancel(t.Context())
	given := make(chan error, 1)
	go func() {
		_, err := s.Put(ctx, metastore.Key{Path: "given-up"}, nil, metastore.Absent)
		given <- err
	}()
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Fatalf("Put: %v, want Canceled", err)
	}
	g.results <- nil
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), metastore.Key{Path: "given-up"}); !errors.Is(err, metastore.ErrNotFound) {
		t.Errorf("Get of a write given up in the queue: %v, want ErrNotFound", err)
	}
}

// After a heal the name belongs to another file: a lock on the old one, won
// by whoever waited for it, is worth nothing.
func TestOpenDoesNotUseAReplacedFile(t *testing.T) {
	dir := t.TempDir()
	s, g := openGated(t, dir)
	type opened struct {
		s   *Store
		err error
	}
	lost := later(s, "row", metastore.Absent)
	<-g.entered
	second := make(chan opened, 1)
	go func() {
		other, err := Open(Config{Dir: dir, LockTimeout: time.Second}) // enough for what comes between
		second <- opened{other, err}
	}()
	waitUntilOpenTwice(t, filepath.Join(dir, FileName))
	g.results <- syscall.EIO
	if err := <-lost; !errors.Is(err, metastore.ErrUnavailable) {
		t.Fatal(err)
	}
	next := later(s, "row", metastore.Absent)
	<-g.entered
	g.results <- nil
	if err := <-next; err != nil {
		t.Fatal(err)
	}
	if o := <-second; o.err == nil {
		t.Errorf("two stores have %s open", dir)
		_ = o.s.Close()
	}
}

// waitUntilOpenTwice waits until this process has a file open twice.
func waitUntilOpenTwice(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		fds, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, fd := range fds {
			if target, err := os.Readlink(fd); err == nil && target == path {
				n++
			}
		}
		if n >= 2 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is open %d times", path, n)
		}
	}
}
