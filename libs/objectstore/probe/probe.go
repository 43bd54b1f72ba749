// Package probe proves at start that an object store keeps the promises Nova's
// safety rests on. Some stores that speak S3 accept a conditional PUT and ignore
// the condition: on such a store two writers would both acknowledge the same
// slot, so a process refuses to run there.
package probe

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nova-stream/nova/libs/objectstore"
)

// ErrUnfit is wrapped by Run's error when the store answered and broke a
// promise: do not run on it. Any other error of Run (a store's own) means that
// nothing is proven yet: say it, and perhaps try again.
var ErrUnfit = errors.New("the object store is unfit and Nova refuses to run on it")

const (
	// folder holds the probe's objects.
	folder = "probe/"
	// racers put the same key at once, in rounds races.
	racers, rounds = 8, 3
	// attempts per call while the store is unavailable or throttles.
	attempts = 5
	// cleanup is how long the removal of the probe's objects may take.
	cleanup = 10 * time.Second
)

// Run probes store: of concurrent conditional puts of one key exactly one wins,
// a put of an existing key says so, a stale etag is refused, reads see what was
// written, and ranged reads return exactly the range. It takes a few dozen
// calls on unique keys below probe/, and deletes those keys.
func Run(ctx context.Context, store objectstore.Store) (err error) {
	p := prober{store: store, base: folder + strings.ToLower(rand.Text()) + "/"}
	defer func() {
		// Also after a canceled probe; a failure matters only if nothing else did.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		if cleanErr := p.again(ctx, func() error { return store.Delete(ctx, p.keys...) }); err == nil && cleanErr != nil {
			err = fmt.Errorf("object store probe: delete its own objects: %w", cleanErr)
		}
	}()
	for _, check := range []func(context.Context) error{p.exists, p.oneWinner, p.match, p.ranges, p.deletes} {
		if err := check(ctx); err != nil {
			return fmt.Errorf("object store probe: %w", err)
		}
	}
	return nil
}

type prober struct {
	store objectstore.Store
	base  string
	keys  []string
}

func (p *prober) key(name string) string {
	key := p.base + name
	p.keys = append(p.keys, key)
	return key
}

func unfit(promise string, args ...any) error {
	return fmt.Errorf("%w: it breaks a promise: %s", ErrUnfit, fmt.Sprintf(promise, args...))
}

// again repeats a call whose effect is unknown, with a pause that doubles.
func (p *prober) again(ctx context.Context, call func() error) error {
	for i, pause := 1, 20*time.Millisecond; ; i, pause = i+1, 2*pause {
		err := call()
		if i == attempts || !errors.Is(err, objectstore.ErrUnavailable) && !errors.Is(err, objectstore.ErrThrottled) {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// put creates key, also if an attempt whose reply was lost did.
func (p *prober) put(ctx context.Context, key string, body []byte) (objectstore.ETag, error) {
	var etag objectstore.ETag
	err := p.again(ctx, func() (err error) {
		etag, err = p.store.PutIfAbsent(ctx, key, body)
		return err
	})
	if errors.Is(err, objectstore.ErrExists) {
		o, err := p.get(ctx, key)
		if err == nil && !bytes.Equal(o.Body, body) {
			err = unfit("PutIfAbsent of a key nobody has used said that an object exists")
		}
		return o.ETag, err
	}
	return etag, err
}

// get reads key, which is there.
func (p *prober) get(ctx context.Context, key string) (objectstore.Object, error) {
	var o objectstore.Object
	err := p.again(ctx, func() (err error) {
		o, err = p.store.Get(ctx, key)
		return err
	})
	if errors.Is(err, objectstore.ErrNotFound) {
		err = unfit("a read after a successful put did not find the object")
	}
	return o, err
}

func (p *prober) wantBody(ctx context.Context, key string, want []byte) error {
	o, err := p.get(ctx, key)
	if err == nil && !bytes.Equal(o.Body, want) {
		err = unfit("a read returned other bytes than were put, or those of a put that was refused")
	}
	return err
}

func (p *prober) exists(ctx context.Context) error {
	key, first := p.key("exists"), []byte("first")
	if _, err := p.put(ctx, key, first); err != nil {
		return err
	}
	for _, body := range [][]byte{[]byte("second"), first} {
		err := p.again(ctx, func() error { _, err := p.store.PutIfAbsent(ctx, key, body); return err })
		if err == nil {
			return unfit("PutIfAbsent of an existing key must be refused (If-None-Match: *), and was not")
		}
		if !errors.Is(err, objectstore.ErrExists) {
			return err
		}
	}
	return p.wantBody(ctx, key, first)
}

func (p *prober) oneWinner(ctx context.Context) error {
	for round := range rounds {
		key := p.key(fmt.Sprintf("race-%d", round))
		type result struct {
			body    []byte
			unknown bool // an attempt may have won unseen
			err     error
		}
		start, results := make(chan struct{}), make(chan result)
		for i := range racers {
			go func() {
				r := result{body: fmt.Appendf(nil, "racer %d", i)}
				<-start
				r.err = p.again(ctx, func() error {
					_, err := p.store.PutIfAbsent(ctx, key, r.body)
					r.unknown = r.unknown || objectstore.Unknown(err)
					return err
				})
				results <- r
			}()
		}
		close(start)
		var won [][]byte
		var failed error
		unknown := false
		for range racers {
			r := <-results
			unknown = unknown || r.unknown
			switch {
			case r.err == nil:
				won = append(won, r.body)
			case !errors.Is(r.err, objectstore.ErrExists):
				failed = r.err
			}
		}
		switch {
		case len(won) > 1:
			return unfit("of concurrent conditional puts of one key exactly one wins (If-None-Match: *), and %d did", len(won))
		case failed != nil:
			return failed
		case len(won) == 1:
			if err := p.wantBody(ctx, key, won[0]); err != nil {
				return err
			}
		case !unknown:
			return unfit("of concurrent conditional puts of one key exactly one wins (If-None-Match: *), and none did")
		}
	}
	return nil
}

func (p *prober) match(ctx context.Context) error {
	key := p.key("match")
	old, err := p.put(ctx, key, []byte("old"))
	if err != nil {
		return err
	}
	err = p.again(ctx, func() error { _, err := p.store.PutIfMatch(ctx, key, []byte("new"), old); return err })
	// A mismatch may be our own put, whose reply was lost; the read tells.
	if err != nil && !errors.Is(err, objectstore.ErrMismatch) {
		return err
	}
	if o, err := p.get(ctx, key); err != nil {
		return err
	} else if string(o.Body) != "new" {
		return unfit("PutIfMatch with the current etag replaces the object (If-Match), and did not")
	}
	err = p.again(ctx, func() error { _, err := p.store.PutIfMatch(ctx, key, []byte("stale"), old); return err })
	if err == nil {
		return unfit("PutIfMatch with a stale etag must be refused (If-Match), and was not")
	}
	if !errors.Is(err, objectstore.ErrMismatch) {
		return err
	}
	return p.wantBody(ctx, key, []byte("new"))
}

func (p *prober) ranges(ctx context.Context) error {
	key, body := p.key("range"), []byte("0123456789")
	if _, err := p.put(ctx, key, body); err != nil {
		return err
	}
	for _, r := range []objectstore.Range{{Offset: 2, Length: 3}, {Offset: 7}, {Offset: 8, Length: 100}, {Offset: -4}} {
		var o objectstore.Object
		err := p.again(ctx, func() (err error) { o, err = p.store.GetRange(ctx, key, r); return err })
		if err != nil {
			return err
		}
		start, end, err := r.Resolve("GetRange", key, int64(len(body)))
		if err != nil {
			return err
		}
		if !bytes.Equal(o.Body, body[start:end]) || o.Size != int64(len(body)) {
			return unfit("a ranged read returns the range and the size of the object (Range, Content-Range), and %+v of %q returned %q of %d bytes", r, body, o.Body, o.Size)
		}
	}
	return nil
}

func (p *prober) deletes(ctx context.Context) error {
	key := p.key("delete")
	if _, err := p.put(ctx, key, nil); err != nil {
		return err
	}
	for range 2 {
		if err := p.again(ctx, func() error { return p.store.Delete(ctx, key) }); err != nil {
			return err
		}
	}
	err := p.again(ctx, func() error { _, err := p.store.Get(ctx, key); return err })
	if err == nil {
		return unfit("a read after a successful delete found the object")
	}
	if !errors.Is(err, objectstore.ErrNotFound) {
		return err
	}
	return nil
}
