package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/nova-stream/nova/libs/rpc/wire"
)

// MaxMessage is the default limit of one message, in bytes, in each direction.
const MaxMessage = 8 << 20

// ServerConfig holds a network server's settings. Zero values take the defaults.
type ServerConfig struct {
	Options
	// Listen is host:port; port 0 takes a free one.
	Listen string
	// Flag names the setting that Listen came from, for error messages,
	// default "--listen".
	Flag string
	// TLS: nil serves without.
	TLS *tls.Config
	// MaxRecv limits a received message, default MaxMessage bytes.
	MaxRecv int
	// MaxStreams limits the calls under way on one connection, default 1000;
	// more wait at the client.
	MaxStreams uint32
	// KeepAlive is how long a silent connection is trusted before it is probed,
	// default 30 s. It is dropped when a probe is not answered within 10 s.
	KeepAlive time.Duration
}

// Server is a gRPC server on a network, with health and reflection. Until
// [Server.SetReady] says so, health answers NOT_SERVING.
type Server struct {
	log    *slog.Logger
	lis    net.Listener
	grpc   *grpc.Server
	health *health.Server
	serve  sync.WaitGroup
}

// NewServer opens the port, so that a taken one is known at once; nothing is
// served before Start.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Flag == "" {
		cfg.Flag = "--listen"
	}
	if cfg.MaxRecv == 0 {
		cfg.MaxRecv = MaxMessage
	}
	if cfg.MaxStreams == 0 {
		cfg.MaxStreams = 1000
	}
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = 30 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	chain, err := newChain(cfg.Options)
	if err != nil {
		return nil, err
	}
	lis, err := Listen(cfg.Listen, cfg.Flag)
	if err != nil {
		return nil, err
	}
	opts := append(wire.ServerOptions(),
		grpc.ForceServerCodecV2(readable{wire.Codec()}),
		grpc.UnaryInterceptor(chainUnary([]grpc.UnaryServerInterceptor{wire.UnaryServer, chain.unary})),
		grpc.StreamInterceptor(chain.stream),
		grpc.MaxRecvMsgSize(cfg.MaxRecv),
		grpc.MaxConcurrentStreams(cfg.MaxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: cfg.KeepAlive, Timeout: 10 * time.Second}),
		// Pool probes every 20 s, also without a call.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		// Stop must not return while a handler still uses what is closed next.
		grpc.WaitForHandlers(true),
	)
	if cfg.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(cfg.TLS)))
	}
	s := &Server{log: cfg.Log, lis: wire.Track(lis), grpc: grpc.NewServer(opts...), health: health.NewServer()}
	s.SetReady(false)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	return s, nil
}

// Listen opens a TCP port; its errors name the address, the setting it came
// from and what to do.
func Listen(address, flag string) (net.Listener, error) {
	lis, err := net.Listen("tcp", address)
	switch {
	case err == nil:
		return lis, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s %s: the port is taken by another process; stop it, or choose another port (0 takes a free one): %w", flag, address, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s %s: this machine has no such address; use one of its own, or 0.0.0.0 for all: %w", flag, address, err)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s %s: not allowed to listen there; choose a port above 1023: %w", flag, address, err)
	}
	return nil, fmt.Errorf("%s %s: cannot listen there; want host:port: %w", flag, address, err)
}

// RegisterService adds a service; before Start.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.grpc.RegisterService(desc, impl)
}

// Address returns the real host:port, also when port 0 was asked for.
func (s *Server) Address() string { return s.lis.Addr().String() }

// SetReady sets what the health service answers, for the server as a whole.
func (s *Server) SetReady(ready bool) {
	st := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		st = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", st)
}

// Start serves.
func (s *Server) Start() {
	s.serve.Go(func() {
		if err := s.grpc.Serve(s.lis); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			s.log.Error("server failed", "address", s.Address(), "err", err)
		}
	})
}

// Stop is the Endpoint's: graceful until ctx ends, then hard.
func (s *Server) Stop(ctx context.Context) {
	// First, so that balancers and probes look elsewhere.
	s.health.Shutdown()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
	}
	// GracefulStop closes the listener only once Serve has seen it.
	_ = s.lis.Close() // closed twice is fine
	s.serve.Wait()
}
