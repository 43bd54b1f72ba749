package gateway

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

const (
	// leaderLooks is how long a stream that was repaired may stay refused: its leader
	// keeps the verdict for some seconds.
	leaderLooks = 30 * time.Second
	// lookApart is how often the leader is asked meanwhile.
	lookApart = 500 * time.Millisecond
)

// repairable reports whether an error of a verification may be a quarantine, or what
// a repair left that died.
func repairable(err error) bool {
	return reason.Is(err, reason.StreamQuarantine) || reason.Code(err) == codes.Unavailable
}

// repairStream has a settler repair a stream that could not be verified, and
// verifies it then. What it found is reported; an error that has another cause is
// returned as it was.
func (s *Service) repairStream(ctx context.Context, bucket, name string, cause error, srv novapb.AdminService_VerifyServer) error {
	at, err := s.names.Resolve(ctx, bucket, name, "", catalog.ForRead)
	if err != nil {
		return err
	}
	res, err := s.repairBy(ctx, &settlerpb.RepairStreamRequest{StreamId: at.ID.String()})
	switch {
	case err != nil && (ctx.Err() != nil || !reason.Is(cause, reason.StreamQuarantine)):
		return cause
	case err != nil:
		res = &settlerpb.RepairStreamResponse{Why: "no settler could try: " + reason.Code(err).String() + " " + string(reason.Of(err))}
	}
	if res.GetRepaired() && !reason.Is(cause, reason.StreamQuarantine) && res.GetEntries() == 0 && res.GetPins() == 0 {
		return cause // it was no quarantine
	}
	f := &novapb.VerifyFinding{Kind: "quarantined", Message: cause.Error(), Repaired: res.GetRepaired(), Repair: res.GetWhy()}
	if f.GetRepaired() {
		f.Repair = fmt.Sprintf("%d entries were folded into its head and %d pins of chains removed; it is served again", res.GetEntries(), res.GetPins())
	}
	err = srv.Send(&novapb.VerifyResponse{Bucket: bucket, Stream: name, StreamId: at.ID.String(), Findings: []*novapb.VerifyFinding{f}, Done: !f.GetRepaired()})
	if err != nil || !f.GetRepaired() {
		return err
	}
	for until := time.Now().Add(leaderLooks); ; {
		err := s.verifyStream(ctx, bucket, name, srv)
		if err == nil || !repairable(err) || time.Now().After(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookApart):
		}
	}
}

// repairBy asks the settlers one after another: any of them does it, and two do no
// harm.
func (s *Service) repairBy(ctx context.Context, req *settlerpb.RepairStreamRequest) (*settlerpb.RepairStreamResponse, error) {
	nodes, err := s.registry.Nodes(ctx, discovery.Settler)
	if err != nil {
		s.log.WarnContext(ctx, "discovery does not answer", "err", err)
		return nil, reason.New(codes.Unavailable, reason.NodeUnavailable, "discovery does not answer, so that nodes cannot be found")
	}
	if len(nodes) == 0 {
		return nil, reason.New(codes.Unavailable, reason.NodeUnavailable, "there is no settler to repair it")
	}
	for _, n := range discovery.Preferred(nodes) {
		conn, cerr := s.conns.Address(n.Address)
		if err = cerr; err != nil {
			continue
		}
		var res *settlerpb.RepairStreamResponse
		if res, err = settlerpb.NewSettlerServiceClient(conn).RepairStream(ctx, req); err == nil || ctx.Err() != nil {
			return res, err
		}
		s.log.WarnContext(ctx, "a settler does not repair", "node", n.ID, "stream", req.GetStreamId(), "err", err)
	}
	return nil, err
}
