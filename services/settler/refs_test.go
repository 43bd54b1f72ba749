package settler

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/objectstore/fault"
)

// What is trimmed is not written again.
func TestTrimmedChunksAreNotStored(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		whole, part := w.open("first"), w.open("first")
		for range 4 {
			whole.append(2, 1000)
			part.append(2, 1000)
			c.land()
		}
		whole.trim(8)
		part.trim(5)
		c.absorb()
		p := w.process(Config{})
		p.must(w)
		if h := whole.head(); len(h.GetRefs()) != 0 || h.GetDroppedTo() != 8 || h.GetTail() != 8 {
			t.Errorf("%v", h)
		}
		if h := part.head(); len(h.GetRefs()) != 1 || h.GetRefs()[0].GetFirstSeq() != 4 || h.GetDroppedTo() != 5 {
			t.Errorf("%v", h)
		}
		if n := p.objects.Counts()[fault.PutIfAbsent].Written; n > 6000 {
			t.Errorf("%d bytes written for 4 records of 1000", n)
		}
	})
}

// Refs that are trimmed go with a marker that leads to them.
func TestTrimDropsRefs(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		l := w.open("first")
		p := w.process(Config{})
		for range 5 {
			l.append(2, 100)
			c.absorb()
			p.must(w)
		}
		l.trim(5)
		c.absorb()
		p.must(w)
		if h := l.head(); len(h.GetRefs()) != 3 || h.GetDroppedTo() != 5 {
			t.Errorf("%v", h)
		}
		due := w.due(queueUnref)
		if len(due) != 1 || len(due[0].GetRefs()) != 2 || due[0].GetStreamId() != l.id.String() {
			t.Fatalf("markers %v", due)
		}
		if wait := time.Until(time.UnixMilli(due[0].GetAt())); wait < 10*time.Minute-time.Second {
			t.Errorf("what may be read still is dropped in %s", wait)
		}
	})
}

// I8: what a head names is bounded, over any number of spans, and all is found.
func TestHistoryOfManySpans(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		l := w.open("first")
		p := w.process(Config{RewriteRuns: -1})
		for i := range 1200 {
			l.append(1, 10)
			c.absorb()
			if _, err := p.settle(t.Context(), c.id); err != nil {
				t.Fatal(err)
			}
			if h := l.head(); proto.Size(h) > 32<<10 {
				t.Fatalf("span %d: a head of %d bytes", i, proto.Size(h))
			}
		}
		h := l.head()
		if n := len(h.GetPages()); n == 0 || h.GetPages()[0].GetLevel() < 2 {
			t.Errorf("pages %v", h.GetPages())
		}
		l.check(0)
		l.trim(1000)
		l.append(1, 10)
		c.absorb()
		if _, err := p.settle(t.Context(), c.id); err != nil {
			t.Fatal(err)
		}
		l.check(0)
		refs := 0
		for _, d := range w.due(queueUnref) {
			refs += len(d.GetRefs()) + len(d.GetPages())
		}
		if refs == 0 {
			t.Error("nothing was dropped")
		}
	})
}
