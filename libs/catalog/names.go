package catalog

import (
	"context"

	"github.com/maypok86/otter/v2"
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
}

type nameKey struct{ bucket, name string }

// NewNames returns an empty cache over a client.
func NewNames(c *Client) *Names {
	return &Names{client: c, cache: otter.Must(&otter.Options[nameKey, Named]{MaximumSize: maxNames})}
}

// Resolve returns what a name means. With wantID, a ULID, the name must mean
// that stream now: STREAM_NOT_FOUND otherwise.
func (n *Names) Resolve(ctx context.Context, bucket, name, wantID string, why Purpose) (Named, error) {
	key := nameKey{bucket, name}
	if found, ok := n.cache.GetIfPresent(key); ok {
		if wantID == "" || found.ID.String() == wantID {
			return found, nil
		}
		// It may be the newer one that the caller knows.
		n.cache.Invalidate(key)
	}
	found, err := n.cache.Get(ctx, key, otter.LoaderFunc[nameKey, Named](func(ctx context.Context, key nameKey) (Named, error) {
		return n.load(ctx, key, why, wantID != "")
	}))
	if err != nil {
		return Named{}, err
	}
	if wantID != "" && found.ID.String() != wantID {
		return Named{}, reason.New(codes.NotFound, reason.StreamNotFound, "the name does not mean stream "+wantID)
	}
	return found, nil
}

// load asks the index. Others may wait for the answer, so it does not end with
// the caller that asked first. Who knows an id does not create another stream.
func (n *Names) load(ctx context.Context, key nameKey, why Purpose, known bool) (Named, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*patience)
	defer cancel()
	res, err := again(ctx, func() (*indexpb.ResolveStreamResponse, error) {
		return n.client.index.ResolveStream(ctx, &indexpb.ResolveStreamRequest{
			Bucket: key.bucket, Stream: key.name, ForAppend: why == ForAppend && !known, ForRead: why == ForRead && !known,
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

// Close is for tests that count goroutines: it ends the cache's own.
func (n *Names) Close() { n.cache.StopAllGoroutines() }
