package chainwriter

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/directory"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

// OpenChain returns the chain that this life writes.
func (s *Service) OpenChain(ctx context.Context, req *chainwriterpb.OpenChainRequest) (*chainwriterpb.OpenChainResponse, error) {
	if req.GetProfile() != uint32(stream.ProfileStandard) {
		return nil, reason.Missing("express storage")
	}
	w, err := s.writer(ctx)
	if err != nil {
		return nil, err
	}
	return &chainwriterpb.OpenChainResponse{ChainId: w.id.String(), WriterLife: s.life.String()}, nil
}

// owned returns the present writer if the chain is its; CHAIN_SEALED if not:
// every other chain of this life has ended, and one of another life is for
// whoever asks to seal.
func (s *Service) owned(id string) (*writer, error) {
	s.mu.Lock()
	w := s.current
	s.mu.Unlock()
	switch {
	case w == nil || w.id.String() != id:
		return nil, errSealed()
	case w.isEnded():
		return nil, w.errEnded()
	}
	return w, nil
}

// credit is how many bytes one sender may have unanswered: a quarter of the
// pool, so that several senders share it.
func (s *Service) credit() uint64 { return uint64(max(s.cfg.PoolBytes/4, 8<<20)) }

// WriteEntries takes entries in and answers in chain order.
func (s *Service) WriteEntries(srv chainwriterpb.ChainWriterService_WriteEntriesServer) error {
	first, err := srv.Recv()
	if err != nil {
		return err
	}
	if first.GetOpen() == nil {
		return reason.Field("open", "must be the first message")
	}
	w, err := s.owned(first.GetOpen().GetChainId())
	if err != nil {
		return err
	}
	if err := srv.Send(&chainwriterpb.WriteEntriesResponse{CreditBytes: s.credit()}); err != nil {
		return err
	}
	s.senders.Add(1)
	defer s.senders.Add(-1)
	ctx, cancel := context.WithCancelCause(srv.Context())
	defer cancel(nil)
	ses := newSession()
	// The receiving side ends when this call returns, which ends its Recv; it is
	// not waited for.
	go func() { cancel(receive(ctx, srv, w, ses)) }()
	err = ses.send(ctx, w.gone, srv.Send)
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

var errClosed = reason.New(codes.Canceled, "", "the sender closed")

func receive(ctx context.Context, srv chainwriterpb.ChainWriterService_WriteEntriesServer, w *writer, ses *session) error {
	for {
		msg, err := srv.Recv()
		if errors.Is(err, io.EOF) {
			return errClosed
		}
		if err != nil {
			return err
		}
		e, err := entryOf(msg.GetEntry())
		if err != nil {
			return err
		}
		if r := w.accept(ctx, e, spansOf(msg.GetEntry()), ses); r != nil {
			ses.refused(e, r)
		}
	}
}

// entryOf decodes and verifies an entry (I10).
func entryOf(m *chainwriterpb.Entry) (bundle.Entry, error) {
	if m == nil {
		return bundle.Entry{}, reason.Field("entry", "must follow open")
	}
	e := bundle.Entry{
		Kind: bundle.Kind(m.GetKind()), Shard: stream.Shard(m.GetShard()), Epoch: stream.Epoch(m.GetEpoch()),
		EntryNo: stream.EntryNo(m.GetEntryNo()), Timestamp: stream.Millis(m.GetTimestamp()), Body: m.GetBody(),
	}
	if e.Kind == bundle.KindFence || e.Epoch == 0 {
		return bundle.Entry{}, reason.Field("entry.kind", "must not be a fence, and have an epoch")
	}
	if len(m.GetStreamId()) != len(e.StreamID) {
		return bundle.Entry{}, reason.Field("entry.stream_id", fmt.Sprintf("must be %d bytes", len(e.StreamID)))
	}
	e.StreamID = stream.ID(m.GetStreamId())
	if e.Kind != bundle.KindChunk {
		// An argument is small: see whether a bundle takes it before it is in line.
		if _, _, err := bundle.NewBuilder(stream.ChainID{}, stream.FlightID{}, stream.ProfileStandard).Add(e); err != nil {
			return bundle.Entry{}, reason.Field("entry", err.Error())
		}
		return e, nil
	}
	h, err := chunk.Check(e.Body)
	if err != nil {
		return bundle.Entry{}, reason.New(codes.DataLoss, reason.ChecksumMismatch, "entry arrived damaged: "+err.Error())
	}
	if h.StreamID != e.StreamID {
		return bundle.Entry{}, reason.New(codes.DataLoss, reason.ChecksumMismatch, "entry holds a chunk of another stream")
	}
	return e, nil
}

// Fence ends a shard's lower epochs in the present chain, or has another writer
// do so in its own.
func (s *Service) Fence(ctx context.Context, req *chainwriterpb.FenceRequest) (*chainwriterpb.FenceResponse, error) {
	if a := req.GetWriterAddress(); a != "" && a != s.cfg.Address {
		other, err := s.other(a)
		if err != nil {
			return nil, err
		}
		return other.Fence(ctx, &chainwriterpb.FenceRequest{ChainId: req.GetChainId(), Shard: req.GetShard(), Epoch: req.GetEpoch()})
	}
	w, err := s.owned(req.GetChainId())
	if err != nil {
		return nil, err
	}
	cut, err := w.landFence(ctx, stream.Shard(req.GetShard()), stream.Epoch(req.GetEpoch()))
	if err != nil {
		return nil, err
	}
	return &chainwriterpb.FenceResponse{Cut: uint64(cut)}, nil
}

// Seal ends any chain.
func (s *Service) Seal(ctx context.Context, req *chainwriterpb.SealRequest) (*chainwriterpb.SealResponse, error) {
	id, err := stream.ParseChainID(req.GetChainId())
	if err != nil {
		return nil, reason.Field("chain_id", err.Error())
	}
	cut, err := s.chains.Seal(ctx, id, s.life)
	if err != nil {
		return nil, chainError(err)
	}
	return &chainwriterpb.SealResponse{Cut: uint64(cut)}, nil
}

// AbsorbTo absorbs any chain up to a slot.
func (s *Service) AbsorbTo(ctx context.Context, req *chainwriterpb.AbsorbToRequest) (*chainwriterpb.AbsorbToResponse, error) {
	id, err := stream.ParseChainID(req.GetChainId())
	if err != nil {
		return nil, reason.Field("chain_id", err.Error())
	}
	to, err := s.chains.AbsorbTo(ctx, id, stream.Slot(req.GetTo()))
	if err != nil {
		return nil, chainError(err)
	}
	return &chainwriterpb.AbsorbToResponse{AbsorbedTo: uint64(to)}, nil
}

// entriesPerMessage keeps an answer of LookupEntries well below the limit of a
// message: an entry's header is at most some KiB.
const entriesPerMessage = 500

// LookupEntries returns entries of the absorbed part of any chain.
func (s *Service) LookupEntries(req *chainwriterpb.LookupEntriesRequest, srv chainwriterpb.ChainWriterService_LookupEntriesServer) error {
	id, err := stream.ParseChainID(req.GetChainId())
	if err != nil {
		return reason.Field("chain_id", err.Error())
	}
	ids := make([]stream.ID, 0, len(req.GetStreamIds()))
	for i, b := range req.GetStreamIds() {
		if len(b) != len(stream.ID{}) {
			return reason.Field(fmt.Sprintf("stream_ids[%d]", i), "must be 16 bytes")
		}
		ids = append(ids, stream.ID(b))
	}
	found, err := s.chains.Lookup(srv.Context(), id, stream.Shard(req.GetShard()), ids, stream.Slot(req.GetFrom()), stream.Slot(req.GetTo()))
	if err != nil {
		return chainError(err)
	}
	for len(found) > 0 {
		page := found[:min(len(found), entriesPerMessage)]
		found = found[len(page):]
		out := &chainwriterpb.LookupEntriesResponse{Entries: make([]*chainwriterpb.LocatedEntry, len(page))}
		for i := range page {
			out.Entries[i] = locatedOf(&page[i])
		}
		if err := srv.Send(out); err != nil {
			return err
		}
	}
	return nil
}

func locatedOf(l *directory.Located) *chainwriterpb.LocatedEntry {
	return &chainwriterpb.LocatedEntry{
		Kind: chainwriterpb.EntryKind(l.Kind), Shard: uint32(l.Shard), Epoch: uint64(l.Epoch), EntryNo: uint64(l.EntryNo),
		StreamId: l.StreamID[:], Timestamp: int64(l.Timestamp), Header: l.Header,
		At: &chainwriterpb.Coordinates{ChainId: l.At.Chain[:], Slot: uint64(l.At.Slot), Offset: l.At.Offset, Length: l.At.Length},
	}
}

// chainError gives an error of the chain library its code.
func chainError(err error) error {
	switch {
	case catalog.IsNotFound(err):
		return err
	case errors.Is(err, chain.ErrBroken), errors.Is(err, chain.ErrForeign), errors.Is(err, bundle.ErrCorrupt), errors.Is(err, directory.ErrCorrupt):
		return reason.New(codes.DataLoss, reason.ChecksumMismatch, err.Error())
	case errors.Is(err, chain.ErrVanished):
		return reason.New(codes.Unavailable, reason.DirectoryVanished, err.Error())
	case errors.Is(err, objectstore.ErrPermanent):
		return reason.New(codes.FailedPrecondition, reason.StorageDown, err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return reason.New(reason.Code(err), "", err.Error())
	}
	if c := reason.Code(err); c != codes.Unknown {
		return err
	}
	return reason.New(codes.Unavailable, reason.StorageDown, err.Error())
}
