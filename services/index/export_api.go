package index

import (
	"context"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

func exportKey() metastore.Key { return metastore.Key{Partition: "constellation", Path: "export"} }

// GetExportState tells how far exports are. It changes the row, so that what it
// says of exports that have begun is no old read: who saw that something is dead,
// and then begun, knows that an export with a higher number began later.
func (s *Service) GetExportState(ctx context.Context, _ *indexpb.GetExportStateRequest) (*indexpb.GetExportStateResponse, error) {
	st, err := s.changeExports(ctx, func(*indexpb.ExportState) error { return nil })
	if err != nil {
		return nil, err
	}
	return &indexpb.GetExportStateResponse{
		Begun: st.GetBegun(), Completed: st.GetCompleted(), Enabled: st.GetIntervalMs() > 0, IntervalMs: st.GetIntervalMs(),
		CompletedBegunAt: st.GetCompletedBegunAt(), OldestKept: oldestKept(st),
	}, nil
}

// changeExports changes the row of exports, which it makes if there is none, and
// returns it. f may run several times; its error ends it.
func (s *Service) changeExports(ctx context.Context, f func(*indexpb.ExportState) error) (*indexpb.ExportState, error) {
	var out *indexpb.ExportState
	err := retry(ctx, func() error {
		out = &indexpb.ExportState{}
		v, err := s.read(ctx, exportKey(), out)
		if reason.Is(err, reason.RowNotFound) {
			v, err = metastore.Absent, nil
		}
		if err != nil {
			return err
		}
		if err := f(out); err != nil {
			return err
		}
		out.Attempt = stream.NewAttemptID().String()
		_, err = s.put(ctx, exportKey(), out, v)
		return err
	})
	return out, err
}
