package integration

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	sdk "github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/novad"
)

// moving is a connection to whichever node is the present one.
func moving(t *testing.T, address *atomic.Pointer[string]) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///node", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", *address.Load())
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Producers and followers that use the SDK notice nothing of stops but a pause:
// no record is missing, doubled or in another place (I1, I2, I5).
func TestClientsGoOnAcrossStops(t *testing.T) {
	eachStop(t, func(t *testing.T, launch func(...string) novad.Config) {
		n := startReady(t, launch())
		var address atomic.Pointer[string]
		at := func(n *novad.Node) {
			a := n.Addr()
			address.Store(&a)
		}
		at(n)
		dial(t, n.Addr()).create(t, "s", nil)
		ctx := within(t, 3*stopPatience)
		client := sdk.New(moving(t, &address))

		got := make(chan string)
		followed := make(chan error, 1)
		go func() {
			sub := client.Subscribe(ctx, sdk.SubscribeConfig{Request: &novapb.SubscribeRequest{Bucket: bucket, Stream: "s"}})
			defer sub.Close()
			for {
				res, err := sub.Next()
				if err != nil {
					followed <- err
					return
				}
				for _, r := range res.GetRecords() {
					select {
					case got <- string(r.GetBody()):
					case <-ctx.Done():
						followed <- ctx.Err()
						return
					}
				}
			}
		}()
		var sent []string
		ses := client.OpenSession(ctx, sdk.SessionConfig{Bucket: bucket, Stream: "s", Producer: "p"})
		const rounds, each = 3, 60
		produced := make(chan error, 1)
		reached := make(chan struct{}, rounds*each)
		go func() {
			for i := range rounds * each {
				if err := ses.Send(ctx, records(fmt.Sprint("r", i))); err != nil {
					produced <- err
					return
				}
				reached <- struct{}{}
			}
			produced <- nil
		}()
		var seen []string
		for range rounds {
			for range each / 2 {
				select {
				case <-reached:
				case <-ctx.Done():
					t.Fatal(ctx.Err())
				}
				seen = append(seen, <-got)
			}
			ended := stopping(t, n)
			ended()
			n = startReady(t, launch())
			at(n)
		}
		for range rounds * each {
			sent = append(sent, fmt.Sprint("r", len(sent)))
		}
		for len(seen) < len(sent) {
			select {
			case b := <-got:
				seen = append(seen, b)
			case err := <-followed:
				t.Fatalf("the subscription ended after %d records: %v", len(seen), err)
			case <-ctx.Done():
				t.Fatalf("%d of %d records", len(seen), len(sent))
			}
		}
		if !slices.Equal(seen, sent) {
			t.Errorf("followed %q", seen)
		}
		if err := <-produced; err != nil {
			t.Errorf("produce: %v", err)
		}
		if p, err := ses.Close(ctx); err != nil || p.Records != rounds*each {
			t.Errorf("session: %+v, %v", p, err)
		}
		c := dial(t, n.Addr())
		c.expect(t, "s", 0, sent...)
		c.mustVerify(t)
		ended := stopping(t, n)
		ended()
	})
}
