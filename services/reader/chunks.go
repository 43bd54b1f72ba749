package reader

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

// errDamaged means that bytes in storage are not what was written.
var errDamaged = errors.New("damaged")

// decoded is a verified chunk.
type decoded struct {
	header  chunk.Header
	records []stream.Record
	size    int // bytes in memory, about
	piece   *sequencerpb.Piece
}

// damaged says that the chunk, whole as it is, is not the one that belongs there.
func (d *decoded) damaged(what string) error {
	object, at, err := location(d.piece.GetAt())
	if err != nil {
		return err
	}
	return &damage{first: d.header.BaseSeq, object: object, offset: at.GetOffset(), length: at.GetLength(), what: what}
}

// chunks fetches and verifies pieces of a Fetch, in order, a few at once, until
// they decode to limit bytes.
func (s *Service) chunks(ctx context.Context, id stream.ID, pieces []*sequencerpb.Piece, limit int) ([]decoded, error) {
	out := make([]decoded, len(pieces))
	group, fetching := errgroup.WithContext(ctx)
	group.SetLimit(s.cfg.FetchAhead)
	var size atomic.Int64
	n := 0
	for ; n < len(pieces) && size.Load() < int64(limit) && fetching.Err() == nil; n++ {
		d, p := &out[n], pieces[n]
		group.Go(func() error {
			var err error
			*d, err = s.chunk(fetching, id, p)
			size.Add(int64(d.size))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ended(ctx, "read")
	}
	return out[:n], nil
}

// chunk returns one piece: from the leader's answer, else from storage.
func (s *Service) chunk(ctx context.Context, id stream.ID, p *sequencerpb.Piece) (decoded, error) {
	if b := p.GetChunk(); len(b) > 0 {
		if d, err := decode(b, id, p); err == nil {
			return d, nil
		}
		// Damaged on its way; the stored bytes are the ones that count.
	}
	object, at, err := location(p.GetAt())
	if err != nil {
		return decoded{}, err
	}
	d, err := stored(id, p, func() ([]byte, error) { return s.throughCache(ctx, object, at) })
	if err != nil && !reason.Is(err, reason.ObjectNotFound) && ctx.Err() == nil {
		// The cache failed or holds damaged bytes: ask the store itself.
		d, err = stored(id, p, func() ([]byte, error) { return s.direct(ctx, object, at) })
	}
	switch {
	case err != nil && ctx.Err() != nil:
		// Without the error, which may name objects.
		return decoded{}, reason.New(reason.Code(ctx.Err()), reason.StorageDown, "object storage did not answer in time")
	case errors.Is(err, errDamaged):
		return decoded{}, &damage{first: stream.Seq(p.GetBaseSeq()), object: object, offset: at.GetOffset(), length: at.GetLength(), what: err.Error()}
	}
	return d, err
}

func location(at *chainwriterpb.Coordinates) (string, *chainwriterpb.Coordinates, error) {
	if len(at.GetChainId()) != len(stream.ChainID{}) {
		return "", nil, reason.New(codes.Internal, "", "the leader gave no coordinates")
	}
	return chain.SlotKey(stream.ChainID(at.GetChainId()), stream.Slot(at.GetSlot())), at, nil
}

// stored gets the bytes of an entry and verifies that it is the one expected.
func stored(id stream.ID, p *sequencerpb.Piece, get func() ([]byte, error)) (decoded, error) {
	b, err := get()
	if err != nil {
		return decoded{}, err
	}
	e, err := bundle.ParseEntry(b)
	if err != nil {
		return decoded{}, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if e.Kind != bundle.KindChunk || e.StreamID != id {
		return decoded{}, fmt.Errorf("%w: a %s of stream %s is there", errDamaged, e.Kind, e.StreamID)
	}
	return decode(e.Body, id, p)
}

func decode(b []byte, id stream.ID, p *sequencerpb.Piece) (decoded, error) {
	h, records, err := chunk.Decode(b)
	if err != nil {
		return decoded{}, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if h.StreamID != id || uint64(h.BaseSeq) != p.GetBaseSeq() || h.Count != p.GetCount() {
		return decoded{}, fmt.Errorf("%w: records %d+%d of stream %s are there", errDamaged, h.BaseSeq, h.Count, h.StreamID)
	}
	d := decoded{header: h, records: records, piece: p}
	for i := range records {
		d.size += records[i].Size() + recordCost + len(records[i].Headers)*headerCost
	}
	return d, nil
}

func (s *Service) throughCache(ctx context.Context, object string, at *chainwriterpb.Coordinates) ([]byte, error) {
	res, err := s.cache.ReadRange(ctx, &cachepb.ReadRangeRequest{Object: object, Offset: uint64(at.GetOffset()), Length: uint64(at.GetLength())})
	return res.GetData(), err
}

func (s *Service) direct(ctx context.Context, object string, at *chainwriterpb.Coordinates) ([]byte, error) {
	o, err := s.objects.GetRange(ctx, object, objectstore.Range{Offset: int64(at.GetOffset()), Length: int64(at.GetLength())})
	switch {
	case err == nil:
		return o.Body, nil
	case errors.Is(err, objectstore.ErrNotFound):
		return nil, reason.New(codes.NotFound, reason.ObjectNotFound, err.Error())
	case errors.Is(err, objectstore.ErrRange):
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	case ctx.Err() != nil:
		return nil, ended(ctx, "read")
	}
	s.log.WarnContext(ctx, "object storage", "object", object, "err", err)
	return nil, reason.New(codes.Unavailable, reason.StorageDown, "object storage is unavailable")
}

// retryDelay is the pause before the leader is asked again where a chunk is.
const retryDelay = 100 * time.Millisecond
