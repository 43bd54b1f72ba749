package reader

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

// fetched is a Fetch with its chunks.
type fetched struct {
	state  *sequencerpb.StreamState
	start  stream.Seq
	chunks []decoded
}

// fetch asks the leader and gets the chunks. A chunk that is not where the
// leader said may have moved since: the leader is asked again, and only when
// that does not help for Patience is the read UNAVAILABLE.
func (s *Service) fetch(ctx context.Context, id stream.ID, req *sequencerpb.FetchRequest) (fetched, error) {
	deadline := time.Now().Add(s.cfg.Patience)
	for {
		var res *sequencerpb.FetchResponse
		err := s.router.DoIdempotent(ctx, stream.Shard(req.GetStream().GetShard()), func(conn grpc.ClientConnInterface) error {
			var err error
			res, err = sequencerpb.NewSequencerServiceClient(conn).Fetch(ctx, req)
			return err
		})
		if err != nil {
			return fetched{}, err
		}
		chunks, err := s.chunks(ctx, id, res.GetPieces())
		if err == nil {
			return fetched{state: res.GetState(), start: stream.Seq(res.GetStartSeq()), chunks: chunks}, nil
		}
		if !reason.Is(err, reason.ObjectNotFound) {
			return fetched{}, err
		}
		if time.Now().After(deadline) {
			s.log.ErrorContext(ctx, "a committed chunk is not in storage", "stream", id.String(), "err", err)
			return fetched{}, reason.New(codes.Unavailable, reason.StorageDown, "committed records are not where the leader says")
		}
		select {
		case <-ctx.Done():
			return fetched{}, reason.New(reason.Code(ctx.Err()), "", "read: "+ctx.Err().Error())
		case <-time.After(retryDelay):
		}
	}
}
