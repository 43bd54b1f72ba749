package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/maypok86/otter/v2"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
)

// Service is one cache.
type Service struct {
	cachepb.UnimplementedCacheServiceServer

	cfg     Config
	objects objectstore.Store
	log     *slog.Logger
	pages   *otter.Cache[pageKey, page]
	served  metric.Int64Counter
	loaded  metric.Int64Counter
	loads   *loads
}

type pageKey struct {
	object string
	number int64
}

// page is one page of an object. data is shared by all who read it and never
// changed.
type page struct {
	data []byte
	size int64 // bytes of the whole object
}

// New returns a cache over a store.
func New(cfg Config, deps Deps) (*Service, error) {
	cfg = cfg.withDefaults()
	if deps.Objects == nil {
		return nil, errors.New("cache: an object store is needed")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Meter == nil {
		deps.Meter = noop.Meter{}
	}
	const overhead = 256 // of key and bookkeeping, bytes
	pages, err := otter.New(&otter.Options[pageKey, page]{
		MaximumWeight: uint64(cfg.Bytes),
		Weigher:       func(k pageKey, p page) uint32 { return uint32(cap(p.data) + len(k.object) + overhead) },
	})
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	s := &Service{cfg: cfg, objects: deps.Objects, log: deps.Log, pages: pages, loads: newLoads(cfg.Loads)}
	if s.served, err = deps.Meter.Int64Counter("nova.cache.served.bytes", metric.WithUnit("By"), metric.WithDescription("Bytes returned to callers.")); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	if s.loaded, err = deps.Meter.Int64Counter("nova.cache.loaded.bytes", metric.WithUnit("By"), metric.WithDescription("Bytes read from object storage.")); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	return s, nil
}

// Register adds the service's RPCs.
func (s *Service) Register(r grpc.ServiceRegistrar) { cachepb.RegisterCacheServiceServer(r, s) }

// Ready returns nil: a cache needs nothing but its store.
func (s *Service) Ready() error { return nil }

// Run waits for ctx and then stops the cache's own work: what is being read from
// the store, whoever waits for it, since nobody is meant to any more.
func (s *Service) Run(ctx context.Context) error {
	<-ctx.Done()
	s.loads.stop()
	s.pages.StopAllGoroutines()
	return nil
}

// ReadRange returns part of an object, page by page.
func (s *Service) ReadRange(ctx context.Context, req *cachepb.ReadRangeRequest) (*cachepb.ReadRangeResponse, error) {
	if req.GetObject() == "" {
		return nil, reason.Field("object", "is empty")
	}
	if n := req.GetLength(); n == 0 || n > MaxReadBytes {
		return nil, reason.Field("length", fmt.Sprintf("must be 1..%d bytes, is %d", MaxReadBytes, n))
	}
	const maxOffset = 1 << 50 // far beyond any object
	if req.GetOffset() > maxOffset {
		return nil, reason.Field("offset", fmt.Sprintf("must be at most %d", int64(maxOffset)))
	}
	start, end := int64(req.GetOffset()), int64(req.GetOffset()+req.GetLength())
	first := start / PageBytes
	p, err := s.page(ctx, pageKey{req.GetObject(), first})
	if err != nil {
		return nil, err
	}
	end = min(end, p.size)
	if start >= end {
		return nil, reason.New(codes.OutOfRange, "", fmt.Sprintf("offset %d is not inside the object of %d bytes", start, p.size))
	}
	from := start - first*PageBytes
	if end <= (first+1)*PageBytes {
		// The usual case: one page, nothing copied, and nothing of it to append to.
		to := end - first*PageBytes
		s.served.Add(ctx, end-start)
		return &cachepb.ReadRangeResponse{Data: p.data[from:to:to], ObjectSize: uint64(p.size)}, nil
	}
	data := make([]byte, 0, end-start)
	data = append(data, p.data[from:]...)
	for n := first + 1; n*PageBytes < end; n++ {
		next, err := s.page(ctx, pageKey{req.GetObject(), n})
		if err != nil {
			return nil, err
		}
		data = append(data, next.data[:min(int64(len(next.data)), end-n*PageBytes)]...)
	}
	if int64(len(data)) != end-start {
		return nil, reason.New(codes.Unavailable, reason.StorageDown, "the object changed while it was read")
	}
	s.served.Add(ctx, int64(len(data)))
	return &cachepb.ReadRangeResponse{Data: data, ObjectSize: uint64(p.size)}, nil
}

// page returns a page, reading it from the store once however many want it. The
// reading does not end with the caller that began it, nor that caller's wait
// only with the reading.
func (s *Service) page(ctx context.Context, key pageKey) (page, error) {
	if p, ok := s.pages.GetIfPresent(key); ok {
		return p, nil
	}
	type result struct {
		page page
		err  error
	}
	got := make(chan result, 1)
	if !s.loads.begin(key.object) {
		return page{}, errStopping()
	}
	loading, cancel := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(s.loads.running, cancel)
	go func() {
		defer s.loads.work.Done()
		defer cancel()
		defer forget()
		p, err := s.pages.Get(loading, key, otter.LoaderFunc[pageKey, page](s.load))
		if s.loads.end(key.object) {
			// The object was deleted meanwhile; the page may have come in since.
			s.pages.Invalidate(key)
			p, err = page{}, objectstore.ErrNotFound
		}
		got <- result{p, err}
	}()
	select {
	case r := <-got:
		switch {
		case r.err == nil:
			return r.page, nil
		case s.loads.running.Err() != nil:
			return page{}, errStopping()
		}
		return page{}, storeError(r.err)
	case <-ctx.Done():
		return page{}, reason.New(reason.Code(ctx.Err()), "", "read page: "+ctx.Err().Error())
	}
}

// load reads one page.
func (s *Service) load(ctx context.Context, key pageKey) (page, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.LoadTimeout)
	defer cancel()
	if err := s.loads.room.Acquire(ctx, 1); err != nil {
		return page{}, err
	}
	defer s.loads.room.Release(1)
	o, err := s.objects.GetRange(ctx, key.object, objectstore.Range{Offset: key.number * PageBytes, Length: PageBytes})
	if err != nil {
		return page{}, err
	}
	if want := min(PageBytes, o.Size-key.number*PageBytes); int64(len(o.Body)) != want {
		return page{}, fmt.Errorf("read page %d of %s: %d bytes instead of %d: %w", key.number, key.object, len(o.Body), want, objectstore.ErrUnavailable)
	}
	s.loaded.Add(ctx, int64(len(o.Body)))
	return page{data: o.Body, size: o.Size}, nil
}

// DeleteObjects deletes objects from the store, then the pages held of them, and
// those on their way.
func (s *Service) DeleteObjects(ctx context.Context, req *cachepb.DeleteObjectsRequest) (*cachepb.DeleteObjectsResponse, error) {
	if n := len(req.GetObjects()); n == 0 || n > 1000 {
		return nil, reason.Field("objects", fmt.Sprintf("must be 1..1000 keys, are %d", n))
	}
	if err := s.objects.Delete(ctx, req.GetObjects()...); err != nil {
		return nil, storeError(err)
	}
	gone := make(map[string]bool, len(req.GetObjects()))
	for _, o := range req.GetObjects() {
		gone[o] = true
	}
	// First those on their way: they go when they come in, before or after what
	// follows.
	s.loads.doom(gone)
	for k := range s.pages.Keys() {
		if gone[k.object] {
			s.pages.Invalidate(k)
		}
	}
	return &cachepb.DeleteObjectsResponse{}, nil
}

// storeError gives a store's error its code.
func storeError(err error) error {
	switch {
	case errors.Is(err, objectstore.ErrNotFound):
		return reason.New(codes.NotFound, reason.ObjectNotFound, err.Error())
	case errors.Is(err, objectstore.ErrRange):
		return reason.New(codes.OutOfRange, "", err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return reason.New(reason.Code(err), reason.StorageDown, err.Error())
	case errors.Is(err, objectstore.ErrPermanent):
		return reason.New(codes.FailedPrecondition, reason.StorageDown, err.Error())
	}
	return reason.New(codes.Unavailable, reason.StorageDown, err.Error())
}
