package settler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
)

// compactWait is how long the compaction of an object waits for its turn: one is
// compacted at a time, beside a chain that is settled, which shares the memory.
const compactWait = 5 * time.Second

// lasting are the errors that the same call meets again.
var lasting = []error{
	settled.ErrCorrupt, settled.ErrVersion, chunk.ErrCorrupt, chunk.ErrVersion, history.ErrCorrupt, history.ErrVersion, history.ErrBroken,
	objectstore.ErrNotFound, objectstore.ErrRange,
}

// CompactObject moves what heads name out of an object of which most is dead.
func (s *Service) CompactObject(ctx context.Context, req *settlerpb.CompactObjectRequest) (*settlerpb.CompactObjectResponse, error) {
	if !strings.HasPrefix(req.GetObject(), runsPrefix) {
		return nil, reason.Field("object", "must be the key of an object of runs")
	}
	release, err := s.beginCompact(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	c := &compaction{span: &span{engine: s.engine, name: req.GetObject()}, key: req.GetObject()}
	err = c.run(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, reason.New(reason.Code(ctx.Err()), "", ctx.Err().Error())
	case slices.ContainsFunc(lasting, func(of error) bool { return errors.Is(err, of) }):
		return nil, reason.New(codes.DataLoss, reason.ChecksumMismatch, "compact: "+err.Error())
	case err != nil && reason.Code(err) != codes.Unknown:
		return nil, reason.Annotate(err, "compact")
	case err != nil:
		return nil, reason.New(codes.Unavailable, reason.StorageDown, "compact: "+err.Error())
	}
	return &settlerpb.CompactObjectResponse{Moved: c.moved, MovedBytes: c.bytes, Quarantined: c.kept, Left: c.left}, nil
}

// beginCompact waits for a turn, and returns what ends it.
func (s *Service) beginCompact(ctx context.Context) (release func(), err error) {
	timer := time.NewTimer(compactWait)
	defer timer.Stop()
	var held []chan struct{}
	release = func() {
		for _, c := range held {
			<-c
		}
	}
	for _, c := range []chan struct{}{s.compacts, s.settlers} {
		select {
		case c <- struct{}{}:
			held = append(held, c)
			continue
		case <-timer.C:
			err = reason.New(codes.ResourceExhausted, "", "the settler is busy")
		case <-ctx.Done():
			err = reason.New(reason.Code(ctx.Err()), "", ctx.Err().Error())
		}
		release()
		return nil, err
	}
	return release, nil
}
