package reader

import (
	"context"
	"errors"
	"fmt"
	"math"
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
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

var (
	// errDamaged means that bytes in storage are not what was written.
	errDamaged = errors.New("damaged")
	// errOther means that intact bytes are not those that belong there.
	errOther = fmt.Errorf("%w: another's", errDamaged)
	// errMoved means that what was looked for is not where it was said to be, for
	// now: whoever said so is asked again.
	errMoved = errors.New("not there")
)

// place is a part of an object.
type place struct {
	object         string
	offset, length uint64
	first          stream.Seq // the first record concerned
}

func (p place) String() string {
	return fmt.Sprintf("%s bytes %d..%d", p.object, p.offset, p.offset+p.length)
}

// damaged says what is damaged there.
func (p place) damaged(what string) error { return &damage{place: p, what: what} }

// piece says where a chunk lies and which it must be.
type piece struct {
	at     place
	slot   bool   // it is an entry of a bundle; else a frame of a settled object
	window []byte // the chunk, as the leader sent it
	next   stream.Seq
	// What a ref or an index says besides; nil: nothing.
	firstTimestamp, lastTimestamp *stream.Millis
	before, after                 *stream.Hash
	// about is how many bytes it probably decodes to.
	about int64
	// whole: it is to be passed on as it is, and not decoded.
	whole bool
}

// pieceOf returns a piece as the leader gives it.
func pieceOf(p *sequencerpb.Piece) (piece, error) {
	at := p.GetAt()
	if len(at.GetChainId()) != len(stream.ChainID{}) {
		return piece{}, reason.New(codes.Internal, "", "the leader gave no coordinates")
	}
	return piece{
		at: place{
			object: chain.SlotKey(stream.ChainID(at.GetChainId()), stream.Slot(at.GetSlot())),
			offset: uint64(at.GetOffset()), length: uint64(at.GetLength()), first: stream.Seq(p.GetBaseSeq()),
		},
		slot: true, window: p.GetChunk(), next: stream.Seq(p.GetBaseSeq()) + stream.Seq(p.GetCount()), about: int64(at.GetLength()),
	}, nil
}

func piecesOf(in []*sequencerpb.Piece) ([]piece, error) {
	out := make([]piece, len(in))
	for i, p := range in {
		var err error
		if out[i], err = pieceOf(p); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// decoded is a verified chunk.
type decoded struct {
	header  chunk.Header
	records []stream.Record
	payload []byte // as stored, instead of records
	size    int    // bytes in memory once decoded, about
	at      place
}

// open decodes a chunk that was to be passed on whole.
func (d *decoded) open() error {
	var err error
	if d.records, err = chunk.Open(&d.header, d.payload); err != nil {
		return d.damaged(err.Error())
	}
	return nil
}

// damaged says that the chunk, whole as it is, is not the one that belongs there.
func (d *decoded) damaged(what string) error { return d.at.damaged(what) }

// chunks fetches and verifies pieces in order, a few at once, until they decode
// to limit bytes.
func (s *Service) chunks(ctx context.Context, id stream.ID, pieces []piece, limit int) ([]decoded, error) {
	out := make([]decoded, len(pieces))
	group, fetching := errgroup.WithContext(ctx)
	group.SetLimit(s.cfg.FetchAhead)
	var size atomic.Int64 // of what is decoded, and probably of what is not yet
	n := 0
	for ; n < len(pieces) && size.Load() < int64(limit) && fetching.Err() == nil; n++ {
		d, p := &out[n], &pieces[n]
		size.Add(p.about)
		group.Go(func() error {
			var err error
			*d, err = s.chunk(fetching, id, p)
			size.Add(int64(d.size) - p.about)
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
func (s *Service) chunk(ctx context.Context, id stream.ID, p *piece) (decoded, error) {
	if len(p.window) > 0 {
		if d, err := p.decode(p.window, id); err == nil {
			return d, nil
		}
		// Damaged on its way; the stored bytes are the ones that count.
	}
	d, err := read(ctx, s, p.at, func(b []byte) (decoded, error) { return p.parse(b, id) })
	return d, s.foreign(ctx, p, err)
}

// foreign looks at a slot that is damaged: what is another chain's, or the end of
// one, stands there instead of a slot that is gone.
func (s *Service) foreign(ctx context.Context, p *piece, err error) error {
	var found *damage
	if !p.slot || !errors.As(err, &found) {
		return err
	}
	start := place{object: p.at.object, length: bundle.IdentBytes}
	b, err := s.direct(ctx, start)
	if err != nil && !errors.Is(err, errDamaged) {
		return err
	}
	ident, err := bundle.Identify(b)
	found.foreign = err == nil && (ident.IsSeal || chain.SlotKey(ident.Chain, ident.Slot) != p.at.object)
	return found
}

// parse verifies that bytes are the chunk expected, as it is stored.
func (p *piece) parse(b []byte, id stream.ID) (decoded, error) {
	if !p.slot {
		return p.decode(b, id)
	}
	e, err := bundle.ParseEntry(b)
	if err != nil {
		return decoded{}, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if e.Kind != bundle.KindChunk || e.StreamID != id {
		return decoded{}, fmt.Errorf("%w: a %s of stream %s is there", errDamaged, e.Kind, e.StreamID)
	}
	return p.decode(e.Body, id)
}

// decode verifies that bytes are the chunk expected.
func (p *piece) decode(b []byte, id stream.ID) (decoded, error) {
	d := decoded{at: p.at}
	var err error
	if p.whole {
		d.header, d.payload, err = chunk.Split(b)
	} else {
		d.header, d.records, err = chunk.Decode(b)
	}
	h := &d.header
	if err != nil {
		return decoded{}, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if h.StreamID != id || h.BaseSeq != p.at.first || h.Next() != p.next {
		return decoded{}, fmt.Errorf("%w records %d..%d of stream %s are there", errOther, h.BaseSeq, h.Next(), h.StreamID)
	}
	if err := p.told(h); err != nil {
		return decoded{}, err
	}
	if p.whole {
		d.size = int(h.RawLength) + int(h.Count)*recordCost
	}
	for i := range d.records {
		r := &d.records[i]
		d.size += r.Size() + recordCost + len(r.Headers)*headerCost
	}
	return d, nil
}

// told compares a chunk with what ref and index say of it.
func (p *piece) told(h *chunk.Header) error {
	switch {
	case p.firstTimestamp != nil && *p.firstTimestamp != h.FirstTimestamp, p.lastTimestamp != nil && *p.lastTimestamp != h.LastTimestamp:
		return fmt.Errorf("%w records of %d..%d ms are there", errOther, h.FirstTimestamp, h.LastTimestamp)
	case p.before != nil && *p.before != h.HashBefore, p.after != nil && *p.after != h.HashAfter:
		return fmt.Errorf("%w records between content hashes %016x and %016x are there", errOther, h.HashBefore, h.HashAfter)
	}
	return nil
}

// read gets bytes and makes of them what parse does, through the cache; if that
// fails, or parse finds them damaged, from the store itself. Damage there is a
// *damage, an object that is gone OBJECT_NOT_FOUND.
func read[T any](ctx context.Context, s *Service, at place, parse func([]byte) (T, error)) (T, error) {
	v, err := parsed(ctx, at, s.throughCache, parse)
	if err != nil && !reason.Is(err, reason.ObjectNotFound) && ctx.Err() == nil {
		v, err = parsed(ctx, at, s.direct, parse)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		// Without the error, which may name objects.
		return v, reason.New(reason.Code(ctx.Err()), reason.StorageDown, "object storage did not answer in time")
	case errors.Is(err, errDamaged):
		return v, at.damaged(err.Error())
	}
	return v, err
}

func parsed[T any](ctx context.Context, at place, get func(context.Context, place) ([]byte, error), parse func([]byte) (T, error)) (T, error) {
	b, err := get(ctx, at)
	if err != nil {
		var none T
		return none, err
	}
	return parse(b)
}

// maxPart is the largest part of an object that is read, in bytes: no chunk, page
// or index is larger.
const maxPart = 8 << 20

func (s *Service) throughCache(ctx context.Context, at place) ([]byte, error) {
	res, err := s.cache.ReadRange(ctx, &cachepb.ReadRangeRequest{Object: at.object, Offset: at.offset, Length: at.length})
	return res.GetData(), err
}

func (s *Service) direct(ctx context.Context, at place) ([]byte, error) {
	if at.length == 0 || at.length > maxPart || at.offset > math.MaxInt64-maxPart {
		return nil, fmt.Errorf("%w: nothing is as large", errDamaged)
	}
	o, err := s.objects.GetRange(ctx, at.object, objectstore.Range{Offset: int64(at.offset), Length: int64(at.length)})
	return o.Body, s.storeError(ctx, at.object, err)
}

// storeError returns what a caller may branch on of an error of the object store.
func (s *Service) storeError(ctx context.Context, object string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, objectstore.ErrNotFound):
		return reason.New(codes.NotFound, reason.ObjectNotFound, err.Error())
	case errors.Is(err, objectstore.ErrRange):
		return fmt.Errorf("%w: %w", errDamaged, err)
	case ctx.Err() != nil:
		return ended(ctx, "read")
	}
	s.log.WarnContext(ctx, "object storage", "object", object, "err", err)
	return reason.New(codes.Unavailable, reason.StorageDown, "object storage is unavailable")
}

// retryDelay is the pause before the leader is asked again where a chunk is.
const retryDelay = 100 * time.Millisecond
