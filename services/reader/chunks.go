package reader

import (
	"context"
	"errors"
	"fmt"
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
}

// chunks fetches and verifies the pieces of a Fetch, in order.
func (s *Service) chunks(ctx context.Context, id stream.ID, pieces []*sequencerpb.Piece) ([]decoded, error) {
	out := make([]decoded, len(pieces))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(s.cfg.FetchAhead)
	for i, p := range pieces {
		group.Go(func() error {
			d, err := s.chunk(ctx, id, p)
			out[i] = d
			return err
		})
	}
	return out, group.Wait()
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
	d, err := s.stored(ctx, id, p, func() ([]byte, error) { return s.throughCache(ctx, object, at) })
	if err == nil || reason.Is(err, reason.ObjectNotFound) || ctx.Err() != nil {
		return d, err
	}
	// The cache failed or holds damaged bytes: ask the store itself.
	d, err = s.stored(ctx, id, p, func() ([]byte, error) { return s.direct(ctx, object, at) })
	if errors.Is(err, errDamaged) {
		s.log.ErrorContext(ctx, "stored records are damaged", "stream", id.String(), "object", object,
			"offset", at.GetOffset(), "length", at.GetLength(), "first_seq", p.GetBaseSeq(), "err", err)
		return decoded{}, reason.New(codes.DataLoss, reason.ChecksumMismatch, fmt.Sprintf("records from %d on are damaged in storage", p.GetBaseSeq()))
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
func (s *Service) stored(_ context.Context, id stream.ID, p *sequencerpb.Piece, get func() ([]byte, error)) (decoded, error) {
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
	return decoded{header: h, records: records}, nil
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
		return nil, reason.New(reason.Code(ctx.Err()), reason.StorageDown, err.Error())
	}
	s.log.WarnContext(ctx, "object storage", "object", object, "err", err)
	return nil, reason.New(codes.Unavailable, reason.StorageDown, "object storage is unavailable")
}

// retryDelay is the pause before the leader is asked again where a chunk is.
const retryDelay = 100 * time.Millisecond
