package client_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nova-stream/nova/libs/chunk/chunktest"
	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/client/clienttest"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func TestMain(m *testing.M) {
	// Each check waits for reconnections; the command line may ask for more.
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
	chunktest.Warm()
	goleak.VerifyTestMain(m)
}

const (
	bucket = "tests"
	name   = "log"
)

// start returns a server with an empty stream and a client of it.
func start(t testing.TB) (*clienttest.Server, *client.Client) {
	t.Helper()
	s := clienttest.New()
	s.Create(bucket, name)
	return s, dial(t, s.Serve(t), func() int64 { return -1 })
}

func dial(t testing.TB, address string, budget func() int64) *client.Client {
	t.Helper()
	c, err := client.Dial("passthrough:///"+address, client.Options{Dial: []grpc.DialOption{grpc.WithContextDialer(clienttest.Dialer(budget))}})
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// inBubble has f do its work beside a server with an empty stream, and a client of
// it, where time passes only while nobody works: what depends on patience does not
// depend on how fast the machine is. dialled sees every connection.
func inBubble(t *testing.T, dialled func(net.Conn), f func(*testing.T, *clienttest.Server, *client.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, l := clienttest.New(), bufconn.Listen(1<<20)
		s.Create(bucket, name)
		s.ServeOn(t, l)
		c, err := client.Dial("passthrough:///bubble", client.Options{Dial: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				conn, err := l.DialContext(ctx)
				if err == nil && dialled != nil {
					dialled(conn)
				}
				return conn, err
			}),
		}})
		if err != nil {
			t.Fatalf("dial: %v", err)
		}
		t.Cleanup(func() { _ = c.Close() })
		f(t, s, c)
	})
}

// limit bounds everything a test waits for.
func limit(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func batchOf(bodies ...string) []*novapb.AppendRecord {
	out := make([]*novapb.AppendRecord, len(bodies))
	for i, b := range bodies {
		out[i] = &novapb.AppendRecord{Body: []byte(b)}
	}
	return out
}

func bodies(records []*novapb.Record) []string {
	out := make([]string, len(records))
	for i, r := range records {
		out[i] = string(r.GetBody())
	}
	return out
}

// counted returns the bodies "0", "1", ... below n.
func counted(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint(i)
	}
	return out
}

func ptr[T any](v T) *T { return &v }
