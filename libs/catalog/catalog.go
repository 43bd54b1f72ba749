package catalog

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Absent is the version of a row that does not exist.
const Absent int64 = -1

// pageLimit is how many rows a list asks for at once.
const pageLimit = 500

// patience is how long one call is repeated while the index does not answer,
// unless its context ends sooner.
const patience = 5 * time.Second

// Client is a typed client of the index. It is safe for concurrent use.
type Client struct {
	index indexpb.IndexServiceClient
}

// New returns a client.
func New(index indexpb.IndexServiceClient) *Client { return &Client{index: index} }

// IsConflict reports that a change was refused because the row has another
// version: what is there is certainly not the caller's change. If a reply was lost
// before, the change may have landed, and others on top of it: whoever decides by
// a conflict that it did not looks at what is there.
func IsConflict(err error) bool { return reason.Is(err, reason.VersionConflict) }

// IsRuleBroken reports that a change would break a rule of the record.
func IsRuleBroken(err error) bool { return reason.Is(err, reason.RuleBroken) }

// IsNotFound reports that there is no such row.
func IsNotFound(err error) bool { return reason.Is(err, reason.RowNotFound) }

// again repeats a call that the index did not answer.
func again[T any](ctx context.Context, f func() (T, error)) (T, error) {
	deadline := time.Now().Add(patience)
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		v, err := f()
		if err == nil || reason.Code(err) != codes.Unavailable || time.Now().After(deadline) {
			return v, err
		}
		select {
		case <-ctx.Done():
			return v, err
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

// Between tries of a change that another came before, or that was made of a read that
// was old: about as long as the reads of a store are old, and no longer.
const (
	shortPause = time.Millisecond
	longPause  = 128 * time.Millisecond
)

// tries are those of one change.
type tries struct{ pause time.Duration }

// again waits before the next try, and returns an error if ctx ends first.
func (t *tries) again(ctx context.Context) error {
	t.pause = min(max(2*t.pause, shortPause), longPause)
	select {
	case <-ctx.Done():
		return reason.New(reason.Code(ctx.Err()), "", ctx.Err().Error())
	case <-time.After(t.pause/2 + rand.N(t.pause)):
		return nil
	}
}

func newAttempt() string { return stream.NewAttemptID().String() }

// OpenConstellation returns the constellation, made with n shards if it is new.
func (c *Client) OpenConstellation(ctx context.Context, n uint32) (*indexpb.Constellation, error) {
	res, err := again(ctx, func() (*indexpb.OpenConstellationResponse, error) {
		return c.index.OpenConstellation(ctx, &indexpb.OpenConstellationRequest{ShardCount: n})
	})
	return res.GetConstellation(), err
}

// PutLife changes a life's row and returns its new version.
func (c *Client) PutLife(ctx context.Context, l *indexpb.Life, expected int64) (int64, error) {
	l = proto.CloneOf(l)
	l.Attempt = newAttempt()
	res, err := again(ctx, func() (*indexpb.PutLifeResponse, error) {
		return c.index.PutLife(ctx, &indexpb.PutLifeRequest{Life: l, ExpectedVersion: expected})
	})
	return res.GetVersion(), err
}

// GetLife returns a life's row; IsNotFound if there is none.
func (c *Client) GetLife(ctx context.Context, id string) (*indexpb.Life, int64, error) {
	res, err := again(ctx, func() (*indexpb.GetLifeResponse, error) {
		return c.index.GetLife(ctx, &indexpb.GetLifeRequest{LifeId: id})
	})
	return res.GetLife(), res.GetVersion(), err
}

// EndLife makes a live life's row DEAD or RELEASED; one that is over, or
// absent, is left as it is.
func (c *Client) EndLife(ctx context.Context, id string, state indexpb.LifeState) error {
	for t := (tries{}); ; {
		l, version, err := c.GetLife(ctx, id)
		if IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if l.GetState() != indexpb.LifeState_LIFE_STATE_LIVE {
			return nil
		}
		l = proto.CloneOf(l)
		l.State = state
		if _, err = c.PutLife(ctx, l, version); !IsConflict(err) {
			return err
		}
		if err := t.again(ctx); err != nil {
			return err
		}
	}
}

// DeleteLife removes the row of a life that is over.
func (c *Client) DeleteLife(ctx context.Context, id string, expected int64) error {
	_, err := again(ctx, func() (*indexpb.DeleteLifeResponse, error) {
		return c.index.DeleteLife(ctx, &indexpb.DeleteLifeRequest{LifeId: id, ExpectedVersion: expected})
	})
	return err
}

// EachLife calls f with every life, which f may change.
func (c *Client) EachLife(ctx context.Context, f func(l *indexpb.Life, version int64) error) error {
	after := ""
	for {
		res, err := again(ctx, func() (*indexpb.ListLivesResponse, error) {
			return c.index.ListLives(ctx, &indexpb.ListLivesRequest{StartAfter: after, Limit: pageLimit})
		})
		if err != nil {
			return err
		}
		for _, v := range res.GetLives() {
			after = v.GetLife().GetLifeId()
			if err := f(proto.CloneOf(v.GetLife()), v.GetVersion()); err != nil {
				return err
			}
		}
		if !res.GetHasMore() {
			return nil
		}
	}
}

// GetShard returns a shard's row, which the caller may change, and its version.
func (c *Client) GetShard(ctx context.Context, n stream.Shard) (*indexpb.Shard, int64, error) {
	res, err := again(ctx, func() (*indexpb.GetShardResponse, error) {
		return c.index.GetShard(ctx, &indexpb.GetShardRequest{Shard: uint32(n)})
	})
	if err != nil {
		return nil, 0, err
	}
	return proto.CloneOf(res.GetShard()), res.GetVersion(), nil
}

// PutShard changes a shard's row and returns its new version.
func (c *Client) PutShard(ctx context.Context, r *indexpb.Shard, expected int64) (int64, error) {
	r = proto.CloneOf(r)
	r.Attempt = newAttempt()
	res, err := again(ctx, func() (*indexpb.PutShardResponse, error) {
		return c.index.PutShard(ctx, &indexpb.PutShardRequest{Shard: r, ExpectedVersion: expected})
	})
	return res.GetVersion(), err
}

// ListShards returns every shard that has a row.
func (c *Client) ListShards(ctx context.Context) (map[stream.Shard]*indexpb.Shard, error) {
	out := map[stream.Shard]*indexpb.Shard{}
	for start := uint32(0); ; {
		res, err := again(ctx, func() (*indexpb.ListShardsResponse, error) {
			return c.index.ListShards(ctx, &indexpb.ListShardsRequest{Start: start, Limit: pageLimit})
		})
		if err != nil {
			return nil, err
		}
		for _, v := range res.GetShards() {
			out[stream.Shard(v.GetShard().GetShard())] = v.GetShard()
			start = v.GetShard().GetShard() + 1
		}
		if !res.GetHasMore() {
			return out, nil
		}
	}
}

// GetChain returns a chain's row, which the caller may change, and its version.
func (c *Client) GetChain(ctx context.Context, id string) (*indexpb.Chain, int64, error) {
	res, err := again(ctx, func() (*indexpb.GetChainResponse, error) {
		return c.index.GetChain(ctx, &indexpb.GetChainRequest{ChainId: id})
	})
	if err != nil {
		return nil, 0, err
	}
	return proto.CloneOf(res.GetChain()), res.GetVersion(), nil
}

// PutChain changes a chain's row and returns its new version.
func (c *Client) PutChain(ctx context.Context, r *indexpb.Chain, expected int64) (int64, error) {
	r = proto.CloneOf(r)
	r.Attempt = newAttempt()
	res, err := again(ctx, func() (*indexpb.PutChainResponse, error) {
		return c.index.PutChain(ctx, &indexpb.PutChainRequest{Chain: r, ExpectedVersion: expected})
	})
	return res.GetVersion(), err
}

// UpdateChain reads a chain's row, lets f change it, and writes it, again when
// another change came between. f returning false leaves the row as it is.
func (c *Client) UpdateChain(ctx context.Context, id string, f func(*indexpb.Chain) (bool, error)) (*indexpb.Chain, error) {
	for t := (tries{}); ; {
		r, version, err := c.GetChain(ctx, id)
		if err != nil {
			return nil, err
		}
		change, err := f(r)
		if err != nil || !change {
			return r, err
		}
		if _, err = c.PutChain(ctx, r, version); !IsConflict(err) {
			return r, err
		}
		if err := t.again(ctx); err != nil {
			return nil, err
		}
	}
}

// EachChain calls f with every chain.
func (c *Client) EachChain(ctx context.Context, f func(*indexpb.Chain) error) error {
	after := ""
	for {
		res, err := again(ctx, func() (*indexpb.ListChainsResponse, error) {
			return c.index.ListChains(ctx, &indexpb.ListChainsRequest{StartAfter: after, Limit: pageLimit})
		})
		if err != nil {
			return err
		}
		for _, v := range res.GetChains() {
			after = v.GetChain().GetChainId()
			if err := f(v.GetChain()); err != nil {
				return err
			}
		}
		if !res.GetHasMore() {
			return nil
		}
	}
}

// EachStream calls f with what every stream is that has a name. One that is made or
// deleted meanwhile may come or not.
func (c *Client) EachStream(ctx context.Context, f func(*indexpb.StreamDescriptor) error) error {
	after := ""
	for {
		res, err := again(ctx, func() (*indexpb.ListBucketsResponse, error) {
			return c.index.ListBuckets(ctx, &indexpb.ListBucketsRequest{StartAfter: after, Limit: pageLimit})
		})
		if err != nil {
			return err
		}
		for _, b := range res.GetBuckets() {
			after = b.GetName()
			if err := c.eachStreamOf(ctx, after, f); err != nil && !reason.Is(err, reason.BucketNotFound) {
				return err
			}
		}
		if !res.GetHasMore() {
			return nil
		}
	}
}

func (c *Client) eachStreamOf(ctx context.Context, bucket string, f func(*indexpb.StreamDescriptor) error) error {
	after := ""
	for t := (tries{}); ; {
		res, err := again(ctx, func() (*indexpb.ListStreamsResponse, error) {
			return c.index.ListStreams(ctx, &indexpb.ListStreamsRequest{Bucket: bucket, StartAfter: after, Limit: pageLimit})
		})
		if err != nil {
			return err
		}
		for _, d := range res.GetStreams() {
			after = d.GetName()
			if err := f(d); err != nil {
				return err
			}
		}
		if !res.GetHasMore() {
			return nil
		}
		if len(res.GetStreams()) > 0 {
			continue
		}
		// Names that lead nowhere are removed by whoever lists them.
		if err := t.again(ctx); err != nil {
			return err
		}
	}
}

// PutDirectory writes the row of a directory; IsConflict if the chain has one
// from that slot already.
func (c *Client) PutDirectory(ctx context.Context, d *indexpb.Directory) error {
	d = proto.CloneOf(d)
	d.Attempt = newAttempt()
	_, err := again(ctx, func() (*indexpb.PutDirectoryResponse, error) {
		return c.index.PutDirectory(ctx, &indexpb.PutDirectoryRequest{Directory: d})
	})
	return err
}

// GetDirectory returns the directory of a chain that starts at a slot.
func (c *Client) GetDirectory(ctx context.Context, chain string, from uint64) (*indexpb.Directory, error) {
	res, err := again(ctx, func() (*indexpb.ListDirectoriesResponse, error) {
		return c.index.ListDirectories(ctx, &indexpb.ListDirectoriesRequest{ChainId: chain, From: from, To: from + 1, Limit: 1})
	})
	if err != nil {
		return nil, err
	}
	if len(res.GetDirectories()) == 0 {
		return nil, reason.New(codes.NotFound, reason.RowNotFound, "no directory starts there")
	}
	return res.GetDirectories()[0], nil
}

// Directories returns the directories of a chain that start in [from, to).
func (c *Client) Directories(ctx context.Context, chain string, from, to uint64) ([]*indexpb.Directory, error) {
	var out []*indexpb.Directory
	for {
		res, err := again(ctx, func() (*indexpb.ListDirectoriesResponse, error) {
			return c.index.ListDirectories(ctx, &indexpb.ListDirectoriesRequest{ChainId: chain, From: from, To: to, Limit: pageLimit})
		})
		if err != nil {
			return nil, err
		}
		out = append(out, res.GetDirectories()...)
		if !res.GetHasMore() || len(res.GetDirectories()) == 0 {
			return out, nil
		}
		from = out[len(out)-1].GetFrom() + 1
	}
}

// TouchHead changes a stream's head under the epoch of the leader that opens
// it, and returns the head. That the change succeeded proves that it was not an
// old one, and IsNotFound is proven too: there is no such stream (any more). A
// head that a higher epoch touched is RULE_BROKEN: the caller is deposed.
func (c *Client) TouchHead(ctx context.Context, id stream.ID, epoch uint64) (*indexpb.Head, error) {
	for t := (tries{}); ; {
		res, err := again(ctx, func() (*indexpb.GetHeadResponse, error) {
			return c.index.GetHead(ctx, &indexpb.GetHeadRequest{StreamId: id.String(), ProveAbsence: true})
		})
		if err != nil {
			return nil, err
		}
		h := proto.CloneOf(res.GetHead())
		h.OpenedEpoch, h.Attempt = epoch, newAttempt()
		_, err = again(ctx, func() (*indexpb.PutHeadResponse, error) {
			return c.index.PutHead(ctx, &indexpb.PutHeadRequest{Head: h, ExpectedVersion: res.GetVersion()})
		})
		if err == nil {
			return h, nil
		}
		if !IsConflict(err) {
			return nil, err
		}
		if err := t.again(ctx); err != nil {
			return nil, err
		}
	}
}

// GetDescriptor returns what a stream is.
func (c *Client) GetDescriptor(ctx context.Context, id stream.ID) (*indexpb.StreamDescriptor, error) {
	res, err := again(ctx, func() (*indexpb.GetDescriptorResponse, error) {
		return c.index.GetDescriptor(ctx, &indexpb.GetDescriptorRequest{StreamId: id.String()})
	})
	return res.GetStream(), err
}

// FreshDescriptor is GetDescriptor, and proves by a change that what it returns
// was no old read. That there is none is not proven.
func (c *Client) FreshDescriptor(ctx context.Context, id stream.ID) (*indexpb.StreamDescriptor, error) {
	res, err := again(ctx, func() (*indexpb.GetDescriptorResponse, error) {
		return c.index.GetDescriptor(ctx, &indexpb.GetDescriptorRequest{StreamId: id.String(), Fresh: true})
	})
	return res.GetStream(), err
}

// FreeName frees a name if it still means the stream.
func (c *Client) FreeName(ctx context.Context, bucket, name string, id stream.ID) error {
	_, err := again(ctx, func() (*indexpb.FreeNameResponse, error) {
		return c.index.FreeName(ctx, &indexpb.FreeNameRequest{Bucket: bucket, Stream: name, StreamId: id.String()})
	})
	return err
}
