package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/consul"
	"github.com/nova-stream/nova/libs/discovery/consul/consultest"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// everyName means one stream, of shard 1.
type everyName struct {
	indexpb.UnimplementedIndexServiceServer

	id string
}

func (e everyName) ResolveStream(context.Context, *indexpb.ResolveStreamRequest) (*indexpb.ResolveStreamResponse, error) {
	return &indexpb.ResolveStreamResponse{Stream: &indexpb.StreamDescriptor{StreamId: e.id, Shard: 1}}, nil
}

// With --consul records need no --addr, and what is missing is named.
func TestConsulGoesToTheServices(t *testing.T) {
	w := begin(t)
	agent := consultest.Start(t)
	w.environ = []string{"NOVA_CONSUL=" + agent}
	r := w.run(t, "a\n", "append", "tests/log")
	if r.code != 1 || !strings.Contains(r.err, "Consul at "+agent+" knows no index and no sequencer of the constellation nova") || strings.Contains(r.err, "rpc error") {
		t.Errorf("append without services: %+v", r)
	}

	registry, err := consul.Open(consul.Config{Address: agent, Constellation: "nova", Check: consul.TTL})
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Close()
	srv, err := rpc.NewServer(rpc.ServerConfig{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	indexpb.RegisterIndexServiceServer(srv, everyName{id: w.Create("tests", "log")})
	srv.Start()
	defer srv.Stop(context.Background())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for service, address := range map[discovery.Service]string{
		discovery.Index: srv.Address(), discovery.Sequencer: w.address, discovery.Reader: w.address,
	} {
		if err := registry.Register(ctx, discovery.Node{ID: string(service), Service: service, Address: address}); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.must(t, "a\nb\n", "append", "tests/log"); got != "appended 2 records, seq 0..1\n" {
		t.Errorf("append: %q", got)
	}
	if got := w.must(t, "", "read", "tests/log"); got != "a\nb\n" {
		t.Errorf("read: %q", got)
	}
	if r := w.run(t, "", "bucket", "list"); r.code != 1 || !strings.Contains(r.err, "knows no gateway of the constellation nova") {
		t.Errorf("bucket list without a gateway: %+v", r)
	}

	if r := w.run(t, "", "check-tail", "tests/log", "--token", "0123"); r.code != 2 || !strings.Contains(r.err, "--token") {
		t.Errorf("a token with --consul: %+v", r)
	}
}

// The servers' own setting in the environment does not take the client away
// from the address that it is given; its command line does.
func TestAddrOrConsul(t *testing.T) {
	w := begin(t)
	const nobody = "127.0.0.1:1"
	w.environ = append(w.environ, "NOVA_CONSUL="+nobody, "NOVA_TOKEN=0123")
	if got := w.must(t, "", "bucket", "list"); !strings.Contains(got, "tests") {
		t.Errorf("both in the environment: %q", got)
	}
	w.environ = w.environ[:1]
	if r := w.run(t, "", "bucket", "list", "--consul", nobody); r.code != 1 || !strings.Contains(r.err, "consul "+nobody) {
		t.Errorf("--consul: %+v", r)
	}
	if r := w.run(t, "", "bucket", "list", "--consul", nobody, "--addr", nobody); r.code != 2 {
		t.Errorf("both on the command line: %+v", r)
	}
	w.environ = []string{"NOVA_CONSUL=" + nobody}
	if got := w.must(t, "", "bucket", "list", "--addr", w.address); !strings.Contains(got, "tests") {
		t.Errorf("--addr: %q", got)
	}
}
