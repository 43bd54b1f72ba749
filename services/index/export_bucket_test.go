package index

import (
	"context"
	"strings"
	"testing"

	"github.com/nova-stream/nova/libs/export"
	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/metastore/fault"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/objectstore"
	objectfault "github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/objectstore/mem"
)

// A constellation works over its own records or not at all: over others it would
// give numbers twice, and anew beside records it would hide them (I1).
func TestABucketThatBelongsToOthersIsRefused(t *testing.T) {
	// A constellation, its bucket with two complete exports and records.
	constellation := func(t *testing.T) (*world, objectstore.Store) {
		w, objects := newWorld(t), mem.New()
		e, _ := w.exporter(objects)
		for range keptExports {
			if err := e.Export(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		put(t, objects, "chain/of-it/0000000000000000")
		return w, objects
	}
	without := func(t *testing.T, objects objectstore.Store, prefix string) objectstore.Store {
		for _, o := range keys(t, objects, prefix) {
			if err := objects.Delete(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		return objects
	}
	for name, c := range map[string]struct {
		stores func(t *testing.T) (metastore.Store, objectstore.Store)
		says   string
	}{
		"both are new":         {func(*testing.T) (metastore.Store, objectstore.Store) { return metamem.New(), mem.New() }, ""},
		"they belong together": {func(t *testing.T) (metastore.Store, objectstore.Store) { w, o := constellation(t); return w.rows, o }, ""},
		"only the newest export is there": {func(t *testing.T) (metastore.Store, objectstore.Store) {
			w, o := constellation(t)
			first, _, _ := strings.Cut(strings.TrimPrefix(keys(t, o, export.Prefix)[0], export.Prefix), "/")
			return w.rows, without(t, o, export.Prefix+first)
		}, ""},
		"nothing was exported yet": {func(t *testing.T) (metastore.Store, objectstore.Store) { return newWorld(t).rows, mem.New() }, ""},
		"somebody removed the exports": {func(t *testing.T) (metastore.Store, objectstore.Store) {
			w, o := constellation(t)
			return w.rows, without(t, o, export.Prefix)
		}, ""},
		"the bucket is empty": {func(t *testing.T) (metastore.Store, objectstore.Store) {
			w, _ := constellation(t)
			return w.rows, mem.New()
		}, "numbers twice"},
		"the bucket is that of others": {func(t *testing.T) (metastore.Store, objectstore.Store) {
			w, _ := constellation(t)
			_, others := constellation(t)
			return w.rows, others
		}, "numbers twice"},
		"the metastore is empty": {func(t *testing.T) (metastore.Store, objectstore.Store) {
			_, o := constellation(t)
			return metamem.New(), o
		}, "novad restore"},
		"the metastore is empty, and all is settled": {func(t *testing.T) (metastore.Store, objectstore.Store) {
			_, o := constellation(t)
			put(t, o, "settled/of-it")
			return metamem.New(), without(t, o, "chain/")
		}, "novad restore"},
		"the bucket does not answer": {func(t *testing.T) (metastore.Store, objectstore.Store) {
			w, o := constellation(t)
			f := objectfault.New(o)
			f.Script(objectfault.Rule{Op: objectfault.GetRange, Do: objectfault.FailBefore})
			return w.rows, f
		}, "look for"},
		"the metastore does not answer": {func(t *testing.T) (metastore.Store, objectstore.Store) {
			w, o := constellation(t)
			w.rows.Script(fault.Rule{Op: fault.Get, Do: fault.FailBefore})
			return w.rows, o
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			rows, objects := c.stores(t)
			err := CheckBucket(t.Context(), rows, objects, "the bucket B")
			switch {
			case c.says == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "the bucket B")):
				t.Errorf("it says %v", err)
			}
		})
	}
}

// Two processes begin a constellation at once: what the other has written already
// is no reason to refuse.
func TestABucketOfAConstellationThatBeginsIsNotRefused(t *testing.T) {
	w, objects := newWorld(t), mem.New()
	put(t, objects, "chain/of-it/0000000000000000")
	w.rows.Script(fault.Rule{Op: fault.Get, Nth: 1, Hook: func(context.Context, fault.Op, string) error { return metastore.ErrNotFound }})
	if err := CheckBucket(t.Context(), w.rows, objects, "the bucket B"); err != nil {
		t.Error(err)
	}
}

// put puts an object.
func put(t *testing.T, objects objectstore.Store, key string) {
	t.Helper()
	if _, err := objects.PutIfAbsent(t.Context(), key, []byte("x")); err != nil {
		t.Fatal(err)
	}
}

// keys are those with a prefix.
func keys(t *testing.T, objects objectstore.Store, prefix string) (all []string) {
	t.Helper()
	found, err := objects.List(t.Context(), prefix, "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range found {
		all = append(all, o.Key)
	}
	return all
}
