package node

import (
	"context"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc"
)

// outwardOptions are those of servers that callers from outside reach: what
// fails within is told in general words, and in full only in the log. Object
// keys, rows and addresses never leave (api: checksum mismatch, not the leader).
func outwardOptions(p *Process) rpc.Options {
	o := options(p)
	o.Unary = append(o.Unary, func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		res, err := handler(ctx, req)
		return res, outward(ctx, p.Log, err)
	})
	o.Stream = append(o.Stream, func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return outward(ss.Context(), p.Log, handler(srv, ss))
	})
	return o
}

// within are reasons that only make sense between services.
var within = map[reason.Reason]bool{
	reason.NotLeader: true, reason.VersionConflict: true, reason.RuleBroken: true, reason.RowNotFound: true,
	reason.ObjectNotFound: true, reason.ChainSealed: true, reason.EpochFenced: true, reason.EntryGap: true,
}

// general is what a caller is told instead of an error's own words, "" if those
// are meant for it.
func general(code codes.Code, why reason.Reason) string {
	switch {
	case within[why]:
		return "a part of the service is not available; try again"
	case why == reason.NoLeader:
		return "the stream has no leader at the moment"
	case code == codes.Unavailable && why == reason.StorageDown:
		return "storage is not available"
	case code == codes.Unavailable && why == "":
		return "a part of the service is not available"
	case code == codes.DataLoss && why == "":
		return "stored data is damaged"
	case code == codes.DeadlineExceeded && why == "":
		return "the deadline passed"
	case code == codes.Internal || code == codes.Unknown:
		return "internal error"
	}
	return ""
}

// outward is an error as the caller may see it: its code, reason and outcome stay.
func outward(ctx context.Context, log *slog.Logger, err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err // becomes INTERNAL without its words
	}
	code, why := st.Code(), reason.Of(err)
	words := general(code, why)
	if words == "" || words == st.Message() {
		return err
	}
	log.InfoContext(ctx, "told in general words", "err", err)
	if within[why] {
		code, why = codes.Unavailable, ""
	}
	told := status.Error(code, words)
	if why != "" {
		told = reason.New(code, why, words)
	}
	if o := reason.OutcomeOf(err); o != "" {
		told = reason.WithOutcome(told, o)
	}
	return told
}
