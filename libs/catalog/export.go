package catalog

import (
	"context"

	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// ExportState returns how far the regular exports of the metadata are. What was
// dead before the call is needed by no export that is kept once OldestKept is above
// the Begun of the answer. It costs a change of one row.
func (c *Client) ExportState(ctx context.Context) (*indexpb.GetExportStateResponse, error) {
	return again(ctx, func() (*indexpb.GetExportStateResponse, error) {
		return c.index.GetExportState(ctx, &indexpb.GetExportStateRequest{})
	})
}
