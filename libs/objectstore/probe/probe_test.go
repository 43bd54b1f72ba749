package probe_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/objectstore/probe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func wantEmpty(t *testing.T, s objectstore.Store) {
	t.Helper()
	if infos, err := s.List(context.Background(), "", "", 1000); err != nil || len(infos) > 0 {
		t.Errorf("the probe left %v, %v", infos, err)
	}
}

func TestGoodStorePasses(t *testing.T) {
	s := mem.New()
	if err := probe.Run(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, s)
}

// Any single passing fault, anywhere, is no reason to call a store unfit.
func TestFlakyStorePasses(t *testing.T) { synctest.Test(t, flakyStorePasses) }

func flakyStorePasses(t *testing.T) {
	for _, do := range []fault.Action{fault.FailBefore, fault.LoseReply, fault.Throttle} {
		for n := 1; ; n++ {
			inner := mem.New()
			f := fault.New(inner)
			rule := f.Script(fault.Rule{Nth: n, Do: do})
			if err := probe.Run(t.Context(), f); err != nil {
				t.Fatalf("action %d at call %d: %v", do, n, err)
			}
			wantEmpty(t, inner)
			if rule.Acted() == 0 {
				break
			}
		}
	}
}

// broken is a store that breaks one promise.
type broken struct {
	objectstore.Store
	put   func(ctx context.Context, key string, body []byte) (objectstore.ETag, error)
	match func(ctx context.Context, key string, body []byte, etag objectstore.ETag) (objectstore.ETag, error)
	get   func(ctx context.Context, key string) (objectstore.Object, error)
	rng   func(ctx context.Context, key string, r objectstore.Range) (objectstore.Object, error)
	del   func(ctx context.Context, keys ...string) error
}

func (b *broken) PutIfAbsent(ctx context.Context, key string, body []byte) (objectstore.ETag, error) {
	if b.put != nil {
		return b.put(ctx, key, body)
	}
	return b.Store.PutIfAbsent(ctx, key, body)
}

func (b *broken) PutIfMatch(ctx context.Context, key string, body []byte, etag objectstore.ETag) (objectstore.ETag, error) {
	if b.match != nil {
		return b.match(ctx, key, body, etag)
	}
	return b.Store.PutIfMatch(ctx, key, body, etag)
}

func (b *broken) Get(ctx context.Context, key string) (objectstore.Object, error) {
	if b.get != nil {
		return b.get(ctx, key)
	}
	return b.Store.Get(ctx, key)
}

func (b *broken) GetRange(ctx context.Context, key string, r objectstore.Range) (objectstore.Object, error) {
	if b.rng != nil {
		return b.rng(ctx, key, r)
	}
	return b.Store.GetRange(ctx, key, r)
}

func (b *broken) Delete(ctx context.Context, keys ...string) error {
	if b.del != nil {
		return b.del(ctx, keys...)
	}
	return b.Store.Delete(ctx, keys...)
}

func TestBrokenPromiseIsNamed(t *testing.T) {
	overwrite := func(s objectstore.Store) func(context.Context, string, []byte) (objectstore.ETag, error) {
		return func(ctx context.Context, key string, body []byte) (objectstore.ETag, error) {
			_ = s.Delete(ctx, key)
			return s.PutIfAbsent(ctx, key, body)
		}
	}
	for promise, breakIt := range map[string]func(s *broken){
		"PutIfAbsent of an existing key must be refused": func(b *broken) { b.put = overwrite(b.Store) },
		// A store that looks before it writes refuses one by one, and lets two
		// pass that look at the same time.
		"exactly one wins (If-None-Match: *), and": func(b *broken) {
			var looking atomic.Int64
			b.put = func(ctx context.Context, key string, body []byte) (objectstore.ETag, error) {
				if strings.Contains(key, "race-") && looking.Add(1) <= 2 {
					return overwrite(b.Store)(ctx, key, body)
				}
				return b.Store.PutIfAbsent(ctx, key, body)
			}
		},
		"PutIfMatch with a stale etag must be refused": func(b *broken) {
			b.match = func(ctx context.Context, key string, body []byte, _ objectstore.ETag) (objectstore.ETag, error) {
				o, err := b.Store.Get(ctx, key)
				if err != nil {
					return "", err
				}
				return b.Store.PutIfMatch(ctx, key, body, o.ETag)
			}
		},
		"PutIfMatch with the current etag replaces": func(b *broken) {
			b.match = func(_ context.Context, key string, _ []byte, _ objectstore.ETag) (objectstore.ETag, error) {
				return "", objectstore.Fail("PutIfMatch", key, objectstore.ErrMismatch, "")
			}
		},
		"a ranged read returns the range": func(b *broken) {
			b.rng = func(ctx context.Context, key string, _ objectstore.Range) (objectstore.Object, error) {
				return b.Store.Get(ctx, key)
			}
		},
		"did not find the object": func(b *broken) {
			b.get = func(_ context.Context, key string) (objectstore.Object, error) {
				return objectstore.Object{}, objectstore.Fail("Get", key, objectstore.ErrNotFound, "")
			}
		},
		"after a successful delete found": func(b *broken) {
			b.del = func(context.Context, ...string) error { return nil }
		},
	} {
		b := &broken{Store: mem.New()}
		breakIt(b)
		err := probe.Run(t.Context(), b)
		if !errors.Is(err, probe.ErrUnfit) || !strings.Contains(err.Error(), promise) || !strings.Contains(err.Error(), "Nova refuses to run") {
			t.Errorf("probe: %v; want ErrUnfit with %q", err, promise)
		}
	}
}

func TestUnreachableStoreIsNotCalledUnfit(t *testing.T) { synctest.Test(t, unreachableStore) }

func unreachableStore(t *testing.T) {
	f := fault.New(mem.New())
	f.Script(fault.Rule{Do: fault.FailBefore})
	if err := probe.Run(t.Context(), f); !errors.Is(err, objectstore.ErrUnavailable) || errors.Is(err, probe.ErrUnfit) {
		t.Errorf("unavailable: %v", err)
	}
	f.Clear()
	f.Script(fault.Rule{Do: fault.Permanent})
	if err := probe.Run(t.Context(), f); !errors.Is(err, objectstore.ErrPermanent) || errors.Is(err, probe.ErrUnfit) {
		t.Errorf("refused: %v", err)
	}
}
