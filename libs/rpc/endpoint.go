package rpc

import (
	"context"

	"google.golang.org/grpc"
)

// Endpoint is where services are registered and called: a [Server] on a
// network, or an [InprocServer]. Register everything, Start, then Stop once.
type Endpoint interface {
	grpc.ServiceRegistrar
	// Address is what others pass to [Pool.Address].
	Address() string
	// Start serves calls and returns at once.
	Start()
	// Stop refuses new calls and returns when those under way have ended. When
	// ctx ends it cancels them and still waits for their handlers, which MUST
	// return once their context has ended.
	Stop(ctx context.Context)
}

var (
	_ Endpoint = (*Server)(nil)
	_ Endpoint = (*InprocServer)(nil)
)
