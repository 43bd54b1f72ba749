package mem_test

import (
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/objectstore/objectstoretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	objectstoretest.Run(t, func(t *testing.T) objectstore.Store { return mem.New() })
}

func TestContractWithPrefix(t *testing.T) {
	shared := mem.New()
	for _, key := range []string{"a", "p/a", "p/b", "q/a", "zz"} {
		if _, err := shared.PutIfAbsent(t.Context(), key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	objectstoretest.Run(t, func(t *testing.T) objectstore.Store {
		return objectstore.WithPrefix(keepOpen{shared}, "p/deep/")
	})
	for _, key := range []string{"a", "p/a", "p/b", "q/a", "zz"} {
		if o, err := shared.Get(t.Context(), key); err != nil || string(o.Body) != key {
			t.Errorf("%s beside the prefix: %q, %v", key, o.Body, err)
		}
	}
}

// keepOpen shares a store among openings that each close theirs.
type keepOpen struct{ objectstore.Store }

func (keepOpen) Close() error { return nil }

func TestPrefixMustBeWholeSegments(t *testing.T) {
	for _, prefix := range []string{"p", "/p/", "../", "p//"} {
		s := objectstore.WithPrefix(mem.New(), prefix)
		if _, err := s.Get(t.Context(), "k"); !errors.Is(err, objectstore.ErrPermanent) {
			t.Errorf("prefix %q: Get = %v, want ErrPermanent", prefix, err)
		}
	}
}

func TestNoKeyIsAFolderOfAnother(t *testing.T) {
	s := mem.New()
	put := func(key string) error {
		_, err := s.PutIfAbsent(t.Context(), key, nil)
		return err
	}
	if err := put("a/b/c"); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "a/b", "a/b/c/d"} {
		if err := put(key); !errors.Is(err, objectstore.ErrPermanent) {
			t.Errorf("put %s beside a/b/c: %v, want ErrPermanent", key, err)
		}
	}
	if err := s.Delete(t.Context(), "a/b/c"); err != nil {
		t.Fatal(err)
	}
	if err := put("a/b"); err != nil {
		t.Errorf("put a/b after a/b/c was deleted: %v", err)
	}
}
