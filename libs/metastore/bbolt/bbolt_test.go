package bbolt_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/metastore/bbolt"
	"github.com/nova-stream/nova/libs/metastore/metastoretest"
)

func TestMain(m *testing.M) {
	if os.Getenv(fullDiskEnv) != "" {
		os.Exit(fullDiskMain())
	}
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, dir string) *bbolt.Store {
	t.Helper()
	s, err := bbolt.Open(bbolt.Config{Dir: dir})
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

func key(path string) metastore.Key { return metastore.Key{Path: path} }

func put(t *testing.T, s metastore.Store, path, value string, expected metastore.Version) metastore.Version {
	t.Helper()
	v, err := s.Put(t.Context(), key(path), []byte(value), expected)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestContract(t *testing.T) {
	metastoretest.Run(t, func(t *testing.T) metastore.Store { return open(t, t.TempDir()) })
}

func TestContractUnderPrefix(t *testing.T) {
	metastoretest.Run(t, func(t *testing.T) metastore.Store {
		root := open(t, t.TempDir())
		for _, path := range []string{"a", "nova-test/", "nova-test0", "zz"} {
			put(t, root, path, "foreign", metastore.Absent)
		}
		s, err := metastore.WithPrefix(root, "nova-test/")
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

func TestRowsAndVersionsSurviveReopening(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "on", "demand")
	s := open(t, dir)
	v1 := put(t, s, "row", "one", metastore.Absent)
	gone := put(t, s, "gone", "x", metastore.Absent)
	if err := s.Delete(t.Context(), key("gone"), gone); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("k", metastore.MaxKeyBytes)
	put(t, s, long, "long", metastore.Absent)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, dir)
	row, err := s.Get(t.Context(), key("row"))
	if err != nil || string(row.Value) != "one" || row.Version != v1 {
		t.Fatalf("Get after reopening = %q %v, %v; want one %v", row.Value, row.Version, err, v1)
	}
	if row, err := s.Get(t.Context(), key(long)); err != nil || string(row.Value) != "long" {
		t.Fatalf("Get of the longest key = %q, %v", row.Value, err)
	}
	if v := put(t, s, "gone", "x", metastore.Absent); v == gone || v == v1 {
		t.Fatalf("version %v was given again after reopening", v)
	}
}

func TestEphemeralRowsGoWithTheirProcess(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for _, path := range []string{"hint", "kept"} {
		v, err := s.PutEphemeral(t.Context(), key(path), []byte("x"), metastore.Absent)
		if err != nil {
			t.Fatal(err)
		}
		if path == "kept" {
			put(t, s, path, "x", v)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if _, err := s.Get(t.Context(), key("hint")); !errors.Is(err, metastore.ErrNotFound) {
		t.Errorf("Get of a former process's ephemeral row: %v, want ErrNotFound", err)
	}
	if _, err := s.Get(t.Context(), key("kept")); err != nil {
		t.Errorf("Get of a row made ordinary: %v", err)
	}
}

func TestSecondOpenSaysWhoHoldsTheDirectory(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	_, err := bbolt.Open(bbolt.Config{Dir: dir, LockTimeout: 10 * time.Millisecond})
	if !errors.Is(err, metastore.ErrUnavailable) || !strings.Contains(err.Error(), "another process uses "+dir) {
		t.Fatalf("second Open: %v, want ErrUnavailable that says another process uses %s", err, dir)
	}
}

func TestForeignFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "metastore.db"), bytes.Repeat([]byte("not a database\n"), 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bbolt.Open(bbolt.Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), dir) {
		t.Fatalf("Open of a foreign file: %v, want an error that names it", err)
	}
	if _, err := bbolt.Open(bbolt.Config{}); !errors.Is(err, metastore.ErrInvalid) {
		t.Fatalf("Open without a directory: %v, want ErrInvalid", err)
	}
}

// Hundreds of streams opened at once after a failover must not wait for as many
// fsyncs in a row.
func TestConcurrentWritesShareCommits(t *testing.T) {
	s := open(t, t.TempDir())
	const n = 512
	before := s.Stats()
	start := make(chan struct{})
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			_, errs[i] = s.Put(t.Context(), key(fmt.Sprintf("row-%03d", i)), []byte("x"), metastore.Absent)
		})
	}
	close(start)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	after := s.Stats()
	if writes := after.Writes - before.Writes; writes != n {
		t.Errorf("%d writes counted, want %d", writes, n)
	}
	// Goroutines that start late miss a batch; far more than that would be one
	// transaction per write.
	if batches := after.Batches - before.Batches; batches > n/16 {
		t.Errorf("%d concurrent writes took %d transactions, want at most %d", n, batches, n/16)
	}
	rows, err := s.Range(t.Context(), "", "row-", "row-~", metastore.MaxRangeLimit)
	if err != nil || len(rows) != n {
		t.Errorf("%d rows, %v; want %d", len(rows), err, n)
	}
}

func TestRefusalsAloneCommitNothing(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, "row", "x", metastore.Absent)
	before := s.Stats()
	for range 10 {
		if _, err := s.Put(t.Context(), key("row"), nil, metastore.Absent); !errors.Is(err, metastore.ErrConflict) {
			t.Fatalf("Put: %v, want ErrConflict", err)
		}
	}
	if after := s.Stats(); after != before {
		t.Errorf("ten refusals changed the counters from %+v to %+v", before, after)
	}
}

func TestCloseAnswersEveryWriter(t *testing.T) {
	s := open(t, t.TempDir())
	var wg sync.WaitGroup
	errs := make([]error, 64)
	for i := range errs {
		wg.Go(func() {
			v := metastore.Absent
			for errs[i] == nil {
				v, errs[i] = s.Put(context.Background(), key(fmt.Sprint(i)), nil, v)
			}
		})
	}
	for deadline := time.Now().Add(10 * time.Second); s.Stats().Batches < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing was written")
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for _, err := range errs {
		if !errors.Is(err, metastore.ErrClosed) {
			t.Errorf("Put while closing: %v, want ErrClosed", err)
		}
	}
}

// A file whose end is missing, or that is something else, is refused with what
// to do; touching pages beyond its end would end the process.
func TestDamagedFile(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for i := range 200 {
		if _, err := s.Put(t.Context(), key(fmt.Sprintf("row-%d", i)), bytes.Repeat([]byte("x"), 1<<10), metastore.Absent); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "metastore.db")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, damaged := range map[string][]byte{
		"cut in the middle": whole[:len(whole)/4], "cut behind its start": whole[:2*os.Getpagesize()], "one page": whole[:os.Getpagesize()],
		"some bytes": []byte("some bytes"), "noise": bytes.Repeat([]byte("noise"), 20000),
	} {
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := bbolt.Open(bbolt.Config{Dir: dir}); !errors.Is(err, metastore.ErrUnavailable) || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if _, err := s.Get(t.Context(), key("row-199")); err != nil {
		t.Error(err)
	}
}
