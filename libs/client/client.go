package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/nova-stream/nova/libs/reason"
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
	// Dial are further options of grpc.
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
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		// A dead connection is noticed within half a minute even when nothing is sent.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	}
	if o.Token != "" {
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

// temporary reports whether a failed call may succeed when it is made again.
func temporary(err error) bool {
	switch reason.Code(err) {
	case codes.Unavailable, codes.ResourceExhausted, codes.Aborted, codes.DeadlineExceeded, codes.Unknown, codes.Internal, codes.Canceled:
		// FENCED is ABORTED by its code, and final.
		return !reason.Is(err, reason.Fenced)
	}
	return false
}

// pause waits before try n, from 0, with jitter; false when ctx ended first.
func pause(ctx context.Context, n int) bool {
	d := min(20*time.Millisecond<<min(n, 6), time.Second)
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
