package gateway

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// menders are settlers that repair, by address; the stream is verified after some
// seconds.
type menders struct {
	*verifiers

	answers map[string]*settlerpb.RepairStreamResponse
	order   []string
	called  []string
	looksAt int // when asked so often, the leader serves the stream; 0: never
}

func (m *menders) VerifyStream(ctx context.Context, r *readerpb.VerifyStreamRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[readerpb.VerifyStreamResponse], error) {
	if len(m.asked)+1 == m.looksAt {
		delete(m.fail, r.GetStream())
	}
	return m.verifiers.VerifyStream(ctx, r, opts...)
}

func (m *menders) ResolveStream(context.Context, *indexpb.ResolveStreamRequest, ...grpc.CallOption) (*indexpb.ResolveStreamResponse, error) {
	return &indexpb.ResolveStreamResponse{Stream: &indexpb.StreamDescriptor{StreamId: stream.NewID().String()}}, nil
}

func (m *menders) Nodes(context.Context, discovery.Service) ([]discovery.Node, error) {
	var out []discovery.Node
	for _, a := range m.order {
		out = append(out, discovery.Node{ID: a, Address: a})
	}
	return out, nil
}

func (m *menders) Address(a string) (grpc.ClientConnInterface, error) { return menderConn{m, a}, nil }

type menderConn struct {
	*menders

	address string
}

func (c menderConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

func (c menderConn) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	c.called = append(c.called, c.address)
	res := c.answers[c.address]
	if res == nil {
		return reason.New(codes.Unavailable, reason.NodeUnavailable, "gone")
	}
	proto.Merge(reply.(proto.Message), res)
	return nil
}

// A stream that is quarantined is repaired by the first settler that answers, and
// verified when its leader serves it; what cannot be repaired is a finding that says
// why, and an error that is no quarantine stays one.
func TestVerifyRepairsAStream(t *testing.T) {
	quarantined := reason.New(codes.DataLoss, reason.StreamQuarantine, "quarantined")
	down := reason.New(codes.Unavailable, reason.StorageDown, "down")
	fixed := &settlerpb.RepairStreamResponse{Repaired: true, Entries: 2, Pins: 1}
	for _, c := range []struct {
		name     string
		cause    error
		settlers map[string]*settlerpb.RepairStreamResponse
		repaired bool
		says     string // of the one finding; empty: none
		code     codes.Code
	}{
		{"repaired", quarantined, map[string]*settlerpb.RepairStreamResponse{"b": fixed}, true, "2 entries", codes.OK},
		{"left over pins", down, map[string]*settlerpb.RepairStreamResponse{"a": {Repaired: true, Pins: 3}}, true, "3 pins", codes.OK},
		{"not repaired", quarantined, map[string]*settlerpb.RepairStreamResponse{"a": {Why: "slot 7"}}, false, "slot 7", codes.OK},
		{"no settler", quarantined, nil, false, "no settler", codes.OK},
		{"no quarantine", down, map[string]*settlerpb.RepairStreamResponse{"a": {Repaired: true}}, false, "", codes.Unavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &menders{
					verifiers: &verifiers{streams: map[string][]string{"a": {"x"}}, fail: map[string]error{"x": c.cause}},
					answers:   c.settlers, order: []string{"a", "b"},
				}
				names := catalog.NewNames(catalog.New(v))
				defer names.Close()
				s := &Service{
					cfg: Config{Patience: time.Minute}, index: v, readers: v, names: names, registry: v, conns: v,
					log: slog.New(slog.DiscardHandler), running: t.Context(),
				}
				call := &verifyCall{ctx: t.Context()}
				if c.repaired {
					v.looksAt = 5
				}
				err := s.Verify(&novapb.VerifyRequest{Bucket: "a", Stream: "x", Repair: true}, call)
				if reason.Code(err) != c.code {
					t.Errorf("error %v", err)
				}
				var found []*novapb.VerifyFinding
				for _, m := range call.got {
					found = append(found, m.GetFindings()...)
				}
				if len(found) != min(len(c.says), 1) || len(found) > 0 && (found[0].GetRepaired() != c.repaired || !strings.Contains(found[0].GetRepair(), c.says)) {
					t.Errorf("found %v", found)
				}
			})
		})
	}
}
