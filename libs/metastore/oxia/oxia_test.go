package oxia_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/metastore/metastoretest"
	"github.com/nova-stream/nova/libs/metastore/oxia"
	"github.com/nova-stream/nova/libs/metastore/oxia/oxiatest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The client never stops this one; see the package comment.
		goleak.IgnoreAnyFunction("github.com/oxia-db/oxia/oxia/internal.(*shardManagerImpl).receiveWithRecovery"))
}

func open(t *testing.T, cfg oxia.Config) *oxia.Store {
	t.Helper()
	s, err := oxia.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func key(path string) metastore.Key { return metastore.Key{Partition: "p", Path: path} }

func put(t *testing.T, s metastore.Store, path, value string, expected metastore.Version) metastore.Version {
	t.Helper()
	v, err := s.Put(t.Context(), key(path), []byte(value), expected)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// One server, so the tests run beside each other's rows.
func TestContract(t *testing.T) {
	address := oxiatest.Start(t)
	t.Run("WithoutPrefix", func(t *testing.T) {
		metastoretest.Run(t, func(t *testing.T) metastore.Store {
			return open(t, oxia.Config{Address: address})
		})
	})
	t.Run("UnderPrefix", func(t *testing.T) {
		metastoretest.Run(t, func(t *testing.T) metastore.Store {
			return open(t, oxia.Config{Address: address + "/default", Prefix: "nova/a.b/"})
		})
	})
}

func TestPrefixesAreApart(t *testing.T) {
	address := oxiatest.Start(t)
	a, b, ab := open(t, oxia.Config{Address: address, Prefix: "a"}), open(t, oxia.Config{Address: address, Prefix: "b"}), open(t, oxia.Config{Address: address, Prefix: "a/b"})
	put(t, a, "row", "of a", metastore.Absent)
	put(t, b, "row", "of b", metastore.Absent)
	put(t, ab, "row", "of a/b", metastore.Absent)
	for s, want := range map[metastore.Store]string{a: "of a", b: "of b", ab: "of a/b"} {
		rows, err := s.Range(t.Context(), "p", "!", "~", 10)
		if err != nil || len(rows) != 1 || string(rows[0].Value) != want {
			t.Errorf("Range = %v, %v; want only %q", rows, err, want)
		}
		row, err := s.Floor(t.Context(), key("~"), "!")
		if err != nil || string(row.Value) != want {
			t.Errorf("Floor = %q, %v; want %q", row.Value, err, want)
		}
	}
	k := metastore.Key{Partition: strings.Repeat("p", metastore.MaxKeyBytes), Path: strings.Repeat("./", metastore.MaxKeyBytes/2)}
	if _, err := a.Put(t.Context(), k, nil, metastore.Absent); err != nil {
		t.Fatal(err)
	}
	if row, err := a.Get(t.Context(), k); err != nil || row.Path != k.Path {
		t.Errorf("Get of the longest key: %v", err)
	}
}

func TestEphemeralRowsGoWithTheirStore(t *testing.T) {
	address := oxiatest.Start(t)
	watcher, owner := open(t, oxia.Config{Address: address}), open(t, oxia.Config{Address: address})
	events, err := watcher.Watch(t.Context(), "hint")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := owner.PutEphemeral(t.Context(), key("hint"), nil, metastore.Absent); err != nil {
		t.Fatal(err)
	}
	put(t, owner, "kept", "", metastore.Absent)
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	for e := range events {
		if e.Path == "hint" && e.Deleted {
			break
		}
	}
	if _, err := watcher.Get(t.Context(), key("hint")); !errors.Is(err, metastore.ErrNotFound) {
		t.Errorf("Get of an ephemeral row whose store closed: %v, want ErrNotFound", err)
	}
	if _, err := watcher.Get(t.Context(), key("kept")); err != nil {
		t.Errorf("Get of an ordinary row: %v", err)
	}
}

func TestRangeStopsAtItsLimit(t *testing.T) {
	s := open(t, oxia.Config{Address: oxiatest.Start(t)})
	const n = 2500
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			_, errs[i] = s.Put(t.Context(), key(fmt.Sprintf("row/%05d", i)), make([]byte, 1000), metastore.Absent)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{1, 7, metastore.MaxRangeLimit} {
		rows, err := s.Range(t.Context(), "p", "row/", "row/~", limit)
		if err != nil || len(rows) != limit || rows[limit-1].Path != fmt.Sprintf("row/%05d", limit-1) {
			t.Fatalf("Range with limit %d: %d rows, %v", limit, len(rows), err)
		}
	}
}

// A server that hangs must not hang its clients, and callers that left must not
// block those that come after.
func TestHangingServerIsUnavailableAndComesBack(t *testing.T) {
	server := oxiatest.New(t)
	const timeout = 500 * time.Millisecond
	s := open(t, oxia.Config{Address: server.Address(), RequestTimeout: timeout})
	v := put(t, s, "row", "x", metastore.Absent)
	resume := server.Pause()
	defer resume()
	brief, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for range 10 {
		if _, err := s.Get(brief, key("row")); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Get with a brief context: %v, want DeadlineExceeded", err)
		}
	}
	start := time.Now()
	calls := map[string]func() error{
		"Get":    func() error { _, err := s.Get(t.Context(), key("row")); return err },
		"Range":  func() error { _, err := s.Range(t.Context(), "p", "a", "z", 1); return err },
		"Put":    func() error { _, err := s.Put(t.Context(), key("row"), nil, v); return err },
		"Delete": func() error { return s.Delete(t.Context(), key("other"), v) },
	}
	var wg sync.WaitGroup
	for name, call := range calls {
		wg.Go(func() {
			if err := call(); !errors.Is(err, metastore.ErrUnavailable) || !strings.Contains(err.Error(), server.Address()) {
				t.Errorf("%s on a hanging server: %v, want ErrUnavailable with its address", name, err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(start); took > 20*timeout { // a busy machine adds to it
		t.Errorf("calls took %v, the timeout is %v", took, timeout)
	}
	resume()
	waitForRow(t, s, "row")
}

func waitForRow(t *testing.T, s metastore.Store, path string) metastore.Row {
	t.Helper()
	var err error
	for deadline := time.Now().Add(metastoretest.Patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var row metastore.Row
		if row, err = s.Get(t.Context(), key(path)); err == nil {
			return row
		}
		if !errors.Is(err, metastore.ErrUnavailable) {
			break
		}
	}
	t.Fatalf("Get(%q) after the server came back: %v", path, err)
	return metastore.Row{}
}

func TestKilledServerComesBackWithWhatItAcknowledged(t *testing.T) {
	server := oxiatest.New(t)
	s := open(t, oxia.Config{Address: server.Address(), RequestTimeout: 2 * time.Second})
	events, err := s.Watch(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	v := put(t, s, "row", "one", metastore.Absent)
	server.Kill()
	if _, err := s.Put(t.Context(), key("row"), []byte("two"), v); !errors.Is(err, metastore.ErrUnavailable) {
		t.Fatalf("Put without a server: %v, want ErrUnavailable", err)
	}
	server.Start()
	row := waitForRow(t, s, "row")
	if string(row.Value) != "one" || row.Version != v {
		t.Errorf("row = %q %v, want one %v", row.Value, row.Version, v)
	}
	for again := metastore.Absent; ; { // watches resume; a watcher writes until it is told
		if again, err = s.Put(t.Context(), key("later"), nil, again); err != nil {
			t.Fatal(err)
		}
		select {
		case e := <-events:
			if e.Path == "later" {
				return
			}
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	for _, address := range []string{"", "/ns", "localhost:1/", "localhost:1/a/b"} {
		if _, err := oxia.Open(oxia.Config{Address: address}); !errors.Is(err, metastore.ErrInvalid) {
			t.Errorf("Open(%q): %v, want ErrInvalid", address, err)
		}
	}
	_, err := oxia.Open(oxia.Config{Address: "127.0.0.1:1", RequestTimeout: 200 * time.Millisecond})
	if !errors.Is(err, metastore.ErrUnavailable) || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("Open without a server: %v, want ErrUnavailable with the address", err)
	}
	if _, err := oxia.Open(oxia.Config{Address: "127.0.0.1:1", Prefix: "\n"}); !errors.Is(err, metastore.ErrInvalid) {
		t.Errorf("Open with an unprintable prefix: %v, want ErrInvalid", err)
	}
}

// Many processes write at once, for the whole life of a constellation: the pinned
// server must not confuse the order of its log (see tools/oxia/writes.go).
func TestClientsThatWriteAtOnce(t *testing.T) {
	const clients, writes = 16, 300
	address := oxiatest.Start(t)
	var work sync.WaitGroup
	for c := range clients {
		s := open(t, oxia.Config{Address: address})
		work.Go(func() {
			version := metastore.Absent
			for n := range writes {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				v, err := s.Put(ctx, key(fmt.Sprint("client-", c)), fmt.Append(nil, n), version)
				cancel()
				if err != nil {
					t.Errorf("client %d, write %d: %v", c, n, err)
					return
				}
				version = v
			}
		})
	}
	work.Wait()
}
