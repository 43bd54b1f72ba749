package catalog

import (
	"context"

	"github.com/maypok86/otter/v2"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Purpose says why a name is resolved: a bucket may create what is named.
type Purpose uint8

// The purposes.
const (
	ForAppend Purpose = iota + 1
	ForRead
)

// Named is what a name means.
type Named struct {
	ID    stream.ID
	Shard stream.Shard
}

// maxNames is how many names are remembered.
const maxNames = 100_000

// Names remembers what names mean. What it says may be old: the leader of a
// stream knows that it is deleted, and refuses; the caller then invalidates and
// resolves once more. So appends need no metastore operation.
type Names struct {
	client *Client
	cache  *otter.Cache[nameKey, Named]
	asking singleflight.Group

	life context.Context // of the shared questions; ends with Close
	end  context.CancelFunc
}

type nameKey struct{ bucket, name string }

// NewNames returns an empty cache over a client.
func NewNames(c *Client) *Names {
	n := &Names{client: c, cache: otter.Must(&otter.Options[nameKey, Named]{MaximumSize: maxNames})}
	n.life, n.end = context.WithCancel(context.Background())
	return n
}

// Resolve returns what a name means. With wantID, a ULID, the name must mean
// that stream now: STREAM_NOT_FOUND otherwise.
func (n *Names) Resolve(ctx context.Context, bucket, name, wantID string, why Purpose) (Named, error) {
	key := nameKey{bucket, name}
	found, ok := n.cache.GetIfPresent(key)
	if !ok {
		var err error
		found, err = n.shared(ctx, key)
		if wantID == "" && reason.Is(err, reason.StreamNotFound) {
			return n.fresh(ctx, key, why)
		}
		if err != nil {
			return Named{}, err
		}
	}
	if wantID == "" || found.ID.String() == wantID {
		return found, nil
	}
	// It may be the newer one that the caller knows. Who knows an id does not
	// create another stream.
	found, err := n.fresh(ctx, key, 0)
	if err != nil {
		return Named{}, err
	}
	if found.ID.String() != wantID {
		return Named{}, reason.New(codes.NotFound, reason.StreamNotFound, "the name does not mean stream "+wantID)
	}
	return found, nil
}

// shared asks the index once for all who miss a name at the same time. Others
// wait for the answer, so the question does not end with who asked first; but
// each waits only as long as its own ctx. It creates nothing, whatever each of
// them would.
func (n *Names) shared(ctx context.Context, key nameKey) (Named, error) {
	answer := n.asking.DoChan(key.bucket+"/"+key.name, func() (any, error) {
		asked, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*patience)
		defer cancel()
		defer context.AfterFunc(n.life, cancel)()
		return n.cache.Get(asked, key, otter.LoaderFunc[nameKey, Named](func(ctx context.Context, key nameKey) (Named, error) {
			return n.ask(ctx, key, 0)
		}))
	})
	select {
	case a := <-answer:
		found, _ := a.Val.(Named)
		return found, a.Err
	case <-ctx.Done():
		return Named{}, reason.New(reason.Code(ctx.Err()), "", "resolve the stream's name: "+ctx.Err().Error())
	}
}

// fresh asks the index now and remembers the answer.
func (n *Names) fresh(ctx context.Context, key nameKey, why Purpose) (Named, error) {
	found, err := n.ask(ctx, key, why)
	if err != nil {
		return Named{}, err
	}
	n.cache.Set(key, found)
	return found, nil
}

func (n *Names) ask(ctx context.Context, key nameKey, why Purpose) (Named, error) {
	res, err := again(ctx, func() (*indexpb.ResolveStreamResponse, error) {
		return n.client.index.ResolveStream(ctx, &indexpb.ResolveStreamRequest{
			Bucket: key.bucket, Stream: key.name, ForAppend: why == ForAppend, ForRead: why == ForRead,
		})
	})
	if err != nil {
		return Named{}, err
	}
	id, err := stream.ParseID(res.GetStream().GetStreamId())
	if err != nil {
		return Named{}, reason.New(codes.Internal, "", err.Error())
	}
	return Named{ID: id, Shard: stream.Shard(res.GetStream().GetShard())}, nil
}

// Invalidate forgets a name if it is remembered to mean the stream.
func (n *Names) Invalidate(bucket, name string, id stream.ID) {
	key := nameKey{bucket, name}
	n.cache.ComputeIfPresent(key, func(found Named) (Named, otter.ComputeOp) {
		if found.ID == id {
			return found, otter.InvalidateOp
		}
		return found, otter.CancelOp
	})
}

// Close is for tests that count goroutines: it ends the cache's own, and what is
// asked.
func (n *Names) Close() {
	n.end()
	n.cache.StopAllGoroutines()
}
