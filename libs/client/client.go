package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/nova-stream/nova/libs/rpc/wire"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Client holds the clients of all public services over one connection. It is
// safe for concurrent use.
type Client struct {
	Buckets novapb.BucketServiceClient
	Streams novapb.StreamServiceClient
	Appends novapb.AppendServiceClient
	Reads   novapb.ReadServiceClient
	Admin   novapb.AdminServiceClient

	conn *grpc.ClientConn // nil: not ours to close
}

// Options say how to connect.
type Options struct {
	// TLS: nil connects without.
	TLS *tls.Config
	// Token is sent as a bearer token with every call; it needs TLS unless the
	// address is on loopback.
	Token string
	// Tracer makes a span of every call. Without it the span in a call's context
	// is sent along all the same: the servers' spans join the caller's trace.
	Tracer trace.TracerProvider
	// Dial are further options of grpc, for example a stats handler.
	Dial []grpc.DialOption
}

// maxMessage is the largest message taken, bytes; servers send less.
const maxMessage = 8 << 20

// Dial returns a client of a gateway or novad at host:port. It connects when
// it is first used, and again whenever the connection breaks.
func Dial(address string, o Options) (*Client, error) {
	creds := insecure.NewCredentials()
	if o.TLS != nil {
		creds = credentials.NewTLS(o.TLS)
	}
	t := newTracing(o.Tracer)
	dial := append(wire.DialOptions(),
		grpc.WithChainUnaryInterceptor(t.unary),
		grpc.WithChainStreamInterceptor(t.stream),
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		// A dead connection is noticed within half a minute even when nothing is sent.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	)
	if o.Token != "" {
		if o.TLS == nil && !onLoopback(address) {
			return nil, fmt.Errorf("connect to %s: a token is only sent over TLS, or on loopback", address)
		}
		dial = append(dial, grpc.WithPerRPCCredentials(bearer{token: o.Token, secure: o.TLS != nil}))
	}
	conn, err := grpc.NewClient(address, append(dial, o.Dial...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	c := New(conn)
	c.conn = conn
	return c, nil
}

// New returns a client over a connection that the caller keeps.
func New(conn grpc.ClientConnInterface) *Client {
	return &Client{
		Buckets: novapb.NewBucketServiceClient(conn), Streams: novapb.NewStreamServiceClient(conn), Appends: novapb.NewAppendServiceClient(conn),
		Reads: novapb.NewReadServiceClient(conn), Admin: novapb.NewAdminServiceClient(conn),
	}
}

// Close closes the connection that Dial made.
func (c *Client) Close() error {
	if c.conn == nil {
		return nil
	}
	return c.conn.Close()
}

// bearer sends a token.
type bearer struct {
	token  string
	secure bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

func (b bearer) RequireTransportSecurity() bool { return b.secure }

// onLoopback reports whether an address is certainly on this machine.
func onLoopback(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	if scheme, rest, ok := strings.Cut(address, ":///"); ok && (scheme == "dns" || scheme == "passthrough") {
		address = rest
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// AppendSize returns the bytes of a record that count against the limits of a
// record and a batch.
func AppendSize(r *novapb.AppendRecord) int {
	n := len(r.GetBody())
	for _, h := range r.GetHeaders() {
		n += len(h.GetName()) + len(h.GetValue())
	}
	return n
}

func headersOf(in []*novapb.Header) []stream.Header {
	if len(in) == 0 {
		return nil
	}
	out := make([]stream.Header, len(in))
	for i, h := range in {
		out[i] = stream.Header{Name: h.GetName(), Value: h.GetValue()}
	}
	return out
}
