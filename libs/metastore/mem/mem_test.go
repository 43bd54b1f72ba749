package mem_test

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/metastore/metastoretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	metastoretest.Run(t, func(*testing.T) metastore.Store { return mem.New() })
}

// One table, many sessions, each under a prefix and beside foreign rows.
func TestContractSharedUnderPrefix(t *testing.T) {
	root := mem.New()
	defer root.Close()
	for _, path := range []string{"a", "nova-test/", "nova-test0", "zz"} {
		if _, err := root.Put(t.Context(), metastore.Key{Path: path}, nil, metastore.Absent); err != nil {
			t.Fatal(err)
		}
	}
	metastoretest.Run(t, func(t *testing.T) metastore.Store {
		s, err := metastore.WithPrefix(root.Session(), "nova-test/")
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

func TestLongestKeyIsMaxKeyBytes(t *testing.T) {
	s := mem.New()
	defer s.Close()
	k := metastore.Key{Path: strings.Repeat("k", metastore.MaxKeyBytes)}
	if _, err := s.Put(t.Context(), k, nil, metastore.Absent); err != nil {
		t.Fatal(err)
	}
	if row, err := s.Get(t.Context(), k); err != nil || row.Path != k.Path {
		t.Fatalf("Get = %q, %v", row.Path, err)
	}
}

func TestPrefixTooLongIsRefused(t *testing.T) {
	s := mem.New()
	defer s.Close()
	for _, p := range []string{strings.Repeat("p", metastore.MaxPrefixBytes+1), "p\n"} {
		if _, err := metastore.WithPrefix(s, p); !errors.Is(err, metastore.ErrInvalid) {
			t.Errorf("WithPrefix(%q) = %v, want ErrInvalid", p, err)
		}
	}
}

func TestEphemeralRowsGoWithTheirSession(t *testing.T) {
	a := mem.New()
	defer a.Close()
	b := a.Session()
	key := func(p string) metastore.Key { return metastore.Key{Path: p} }
	if _, err := a.PutEphemeral(t.Context(), key("a"), nil, metastore.Absent); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"b", "kept"} {
		v, err := b.PutEphemeral(t.Context(), key(p), nil, metastore.Absent)
		if err != nil {
			t.Fatal(err)
		}
		if p == "kept" {
			if _, err := b.Put(t.Context(), key(p), nil, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	events, err := a.Watch(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if ev := <-events; ev.Path != "b" || !ev.Deleted {
		t.Errorf("event %+v, want the deletion of b", ev)
	}
	for path, want := range map[string]error{"a": nil, "b": metastore.ErrNotFound, "kept": nil} {
		if _, err := a.Get(t.Context(), key(path)); !errors.Is(err, want) {
			t.Errorf("Get(%q) after the other session closed: %v, want %v", path, err, want)
		}
	}
}
