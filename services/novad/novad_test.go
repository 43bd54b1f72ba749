package novad_test

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/novad"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		args string
		says string
	}{
		{"", ""},
		{"--dev", ""},
		{"--dir x", ""},
		{"--oxia h:1 --s3-bucket b", ""},
		{"--oxia h:1 --s3-bucket b --consul c:1 --advertise-host h", ""},
		{"--dev --dir x", "--dev"},
		{"--oxia h:1", "go together"},
		{"--s3-bucket b", "go together"},
		{"--dir x --oxia h:1 --s3-bucket b", "--dir does not go"},
		{"--dir x --consul c:1", "that the nodes share"},
		{"--oxia h:1 --s3-bucket b --consul c:1", "--advertise-host"},
		{"--oxia h:1 --oxia-naming g:1 --s3-bucket b", "not available"},
		{"--dev --s3-express-buckets a=b", "not available"},
		{"--oxia h:1 --s3-bucket b --s3-endpoint nonsense", "--s3-endpoint"},
		{"--dev --listen 0.0.0.0:1", "--auth must be said"},
		{"--dev --lease-ttl 10ms", "--lease-ttl"},
		{"--dev --put-lanes 0", "--put-lanes"},
		{"--dev --append-pool-mib 1", "--append-pool-mib"},
		{"--dev --chain-unsettled-mib 0", "--chain-unsettled-mib"},
		{"--dev --chain-unsettled-mib 2047", "--settle-mib"},
		{"--dev --chain-unsettled-mib 2048", ""},
		{"--dev --log-level loud", "--log-level"},
		{"--dev --metrics-listen nowhere", "--metrics-listen"},
		{"--dev --node-id " + strings.Repeat("x", 300), "--node-id"},
	} {
		var cfg novad.Config
		p := config.Program{Name: "novad", Flags: cfg.Flags, Check: cfg.Check, Run: func(context.Context) error { return nil }}
		var out, errs bytes.Buffer
		code := p.Execute(t.Context(), strings.Fields(c.args), nil, &out, &errs)
		if (code == 0) != (c.says == "") || !strings.Contains(errs.String(), c.says) || code == 1 {
			t.Errorf("%q: code %d, %s; want %q", c.args, code, errs.String(), c.says)
		}
	}
}

func start(t *testing.T, cfg novad.Config) *novad.Node {
	t.Helper()
	cfg.HTTPListen, cfg.MetricsListen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.LogLevel, cfg.StopTimeout = "error", time.Second
	n, err := novad.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); n.Ready() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(n.Ready())
		}
	}
	return n
}

func appends(t *testing.T, n *novad.Node) novapb.AppendServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(n.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := novapb.NewBucketServiceClient(conn).CreateBucket(t.Context(), &novapb.CreateBucketRequest{
		Bucket: "test", RequestToken: "once", Config: &novapb.BucketConfig{CreateStreamOnAppendPresence: &novapb.BucketConfig_CreateStreamOnAppend{CreateStreamOnAppend: true}},
	}); err != nil {
		t.Fatal(err)
	}
	return novapb.NewAppendServiceClient(conn)
}

// A stopped node's successor goes on where it ended, on the same directory.
func TestDirectory(t *testing.T) {
	cfg := novad.Config{Dir: t.TempDir()}
	for life := range uint64(3) {
		n := start(t, cfg)
		res, err := appends(t, n).Append(t.Context(), &novapb.AppendRequest{Bucket: "test", Stream: "s", Records: []*novapb.AppendRecord{{Body: []byte("x")}}})
		if err != nil {
			t.Fatal(err)
		}
		if got := res.GetAck().GetFirstSeq(); got != life {
			t.Errorf("life %d wrote at %d", life, got)
		}
		if _, err := novad.Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("a second node on the directory: %v", err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A start that fails half-way leaves nothing behind.
func TestTakenPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var cfg novad.Config
	cfg.Dir, cfg.Listen, cfg.LogLevel = t.TempDir(), taken.Addr().String(), "error"
	if _, err := novad.Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "--listen "+cfg.Listen) {
		t.Errorf("got %v", err)
	}
	cfg.Listen = ""
	if err := start(t, cfg).Close(); err != nil {
		t.Error(err)
	}
}
