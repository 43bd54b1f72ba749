package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	sdk "github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/telemetry"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/novad"
)

const (
	spanAppend  = "nova.v1.AppendService/Append"
	spanSession = "nova.v1.AppendService/AppendSession"
	spanInner   = "sequencer.Append"
	spanFlight  = "chainwriter.Flight"
	spanPut     = "objectstore.PUT"
)

// patience is how long spans may take to arrive.
const patience = 60 * time.Second

// startTraced starts a node that exports its spans, and a client that does.
func startTraced(t *testing.T, change func(*novad.Config)) (*collector, *novad.Node, *client, *sdk.Client, trace.Tracer) {
	t.Helper()
	spans := newCollector(t)
	cfg := nodeConfig(t, "--dev", "--metrics-listen", "127.0.0.1:0")
	if change != nil {
		change(&cfg)
	}
	node := startNode(t, cfg)
	t.Cleanup(func() { stopNode(t, node) })
	awaitReady(t, node)
	tel := tracedClient(t)
	c, err := sdk.Dial(node.Addr(), sdk.Options{Tracer: tel.Tracer})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return spans, node, dial(t, node.Addr()), c, tel.Tracer.Tracer("test")
}

// awaitFlights waits until the flight of every given trace is there with its
// PUT, be it in the trace or by a link from another.
func awaitFlights(t *testing.T, spans *collector, appends int, traces ...trace.TraceID) {
	t.Helper()
	eventually(t, patience, func() error {
		all := spans.all()
		missing := appends
		for _, s := range named(all, spanInner) {
			if slices.Contains(traces, trace.TraceID(s.GetTraceId())) && len(flightsOf(all, s)) > 0 {
				missing--
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d appends have no flight yet, %d spans came", missing, appends, len(all))
		}
		for _, f := range named(all, spanFlight) {
			if !slices.ContainsFunc(named(all, spanPut), func(s span) bool { return id(s.GetParentSpanId()) == id(f.GetSpanId()) }) {
				return errors.New("a flight has no PUT yet")
			}
		}
		return nil
	})
}

// flightsOf returns the flights that name an append, as parent or by a link.
func flightsOf(all map[string]span, s span) []span {
	var out []span
	for _, f := range named(all, spanFlight) {
		names := id(f.GetParentSpanId()) == id(s.GetSpanId())
		for _, l := range f.GetLinks() {
			names = names || id(l.GetSpanId()) == id(s.GetSpanId()) && id(l.GetTraceId()) == id(s.GetTraceId())
		}
		if names {
			out = append(out, f)
		}
	}
	return out
}

// One trace leads from a client's own span through gateway, sequencer and
// chain-writer to the PUT of the slot.
func TestOneTraceFromClientToPut(t *testing.T) {
	spans, _, c, traced, tracer := startTraced(t, nil)
	c.create(t, "s", nil)
	ctx, work := tracer.Start(within(t, patience), "work")
	res, err := traced.Appends.Append(ctx, request("s", "a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	work.End()
	mine := work.SpanContext().TraceID()
	awaitFlights(t, spans, 1, mine)
	eventually(t, patience, func() error {
		if n := len(named(spans.of(mine), "work")) + len(named(spans.of(mine), spanAppend)); n != 5 {
			return fmt.Errorf("%d of 5 spans of calls came", n)
		}
		return nil
	})
	all := spans.of(mine)
	want := []string{
		"client INTERNAL work", "client CLIENT " + spanAppend, // the caller
		"novad SERVER " + spanAppend, "novad CLIENT " + spanAppend, // the gateway
		"novad SERVER " + spanAppend, "novad INTERNAL " + spanInner, // the sequencer
		"novad INTERNAL " + spanFlight, "novad CLIENT " + spanPut, // the chain-writer
	}
	for _, put := range named(all, spanPut) { // several if it was hedged
		if got := path(all, put); !slices.Equal(got, want) {
			t.Errorf("the way to the PUT is %q\nwant %q", got, want)
		}
		flight := all[id(put.GetParentSpanId())]
		chain, key := text(flight.GetAttributes(), string(telemetry.AttrChain)), text(put.GetAttributes(), "nova.objectstore.key")
		if chain == "" || !strings.Contains(key, chain) {
			t.Errorf("the flight is of chain %q, its PUT of %q", chain, key)
		}
		inner := all[id(flight.GetParentSpanId())]
		if got := text(inner.GetAttributes(), string(telemetry.AttrStream)); got != "s" {
			t.Errorf("the append is of stream %q", got)
		}
	}
	if n := len(named(all, spanPut)); n < 1 || n > 2 {
		t.Errorf("%d PUTs", n)
	}
	if n := len(named(all, spanFlight)); n != 1 {
		t.Errorf("%d flights", n)
	}
	if res.GetAck().GetNextSeq() != 2 {
		t.Errorf("ack %v", res.GetAck())
	}
}

// A flight carries the appends of many traces: each of them leads to it, and
// what is not sampled costs no span.
func TestEveryAppendLeadsToItsFlight(t *testing.T) {
	spans, node, c, traced, tracer := startTraced(t, func(cfg *novad.Config) { cfg.ChainWriter.Linger = 100 * time.Millisecond })
	const streams, each = 4, 4
	for i := range streams {
		c.create(t, fmt.Sprint("s", i), nil)
	}
	plain, err := sdk.Dial(node.Addr(), sdk.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	unsampled := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}})
	var mine []trace.TraceID
	appends := 0
	shared := func() bool {
		return slices.ContainsFunc(named(spans.all(), spanFlight), func(f span) bool { return len(f.GetLinks()) > 1 })
	}
	for until := time.Now().Add(patience); !shared(); {
		if time.Now().After(until) {
			t.Fatal("no flight carried several appends")
		}
		var wg sync.WaitGroup
		for i := range streams * each {
			ctx, work := tracer.Start(within(t, patience), "work")
			mine = append(mine, work.SpanContext().TraceID())
			name := fmt.Sprint("s", i%streams)
			wg.Go(func() {
				defer work.End()
				if _, err := traced.Appends.Append(ctx, request(name, "a")); err != nil {
					t.Error(err)
				}
				if _, err := plain.Appends.Append(trace.ContextWithSpanContext(within(t, patience), unsampled), request(name, "b")); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		appends += streams * each
		awaitFlights(t, spans, appends, mine...)
	}
	// A session is one call of many appends.
	ctx, work := tracer.Start(within(t, patience), "session")
	mine = append(mine, work.SpanContext().TraceID())
	session(ctx, t, traced, "s0", "x", "y", "z")
	work.End()
	appends += 3
	awaitFlights(t, spans, appends, mine...)

	all := spans.all()
	inSession := 0
	for _, s := range named(all, spanInner) {
		if n := len(flightsOf(all, s)); n != 1 {
			t.Errorf("an append is named by %d flights", n)
		}
		parent := all[id(s.GetParentSpanId())]
		if parent.GetName() == spanSession {
			inSession++
		}
	}
	if inSession != 3 {
		t.Errorf("%d appends of a session have spans, want 3", inSession)
	}
	for _, f := range named(all, spanFlight) {
		if p := all[id(f.GetParentSpanId())]; p.GetName() != spanInner {
			t.Errorf("a flight is below %q", p.GetName())
		}
	}
	for _, put := range named(all, spanPut) {
		if len(put.GetParentSpanId()) == 0 {
			t.Error("a PUT is a trace of its own")
		}
	}
	if n := len(spans.of(unsampled.TraceID())); n > 0 {
		t.Errorf("%d spans of a trace that is not sampled", n)
	}
}

func session(ctx context.Context, t *testing.T, c *sdk.Client, name string, bodies ...string) {
	t.Helper()
	s := c.OpenSession(ctx, sdk.SessionConfig{Bucket: bucket, Stream: name})
	for _, b := range bodies {
		if err := s.Send(ctx, records(b)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

// What asks whether a node is well, and its admin pages, make no spans; and
// metrics tell of every call whether anything is traced or not.
func TestProbesAreNotTraced(t *testing.T) {
	spans, node, c, traced, tracer := startTraced(t, nil)
	eventually(t, patience, func() error { return serving(t.Context(), c.conn) })
	for range 10 {
		if err := serving(t.Context(), c.conn); err != nil {
			t.Fatal(err)
		}
		page(t, node, "/healthz")
		page(t, node, "/readyz")
		page(t, node, "/metrics")
	}
	c.create(t, "s", nil)
	ctx, work := tracer.Start(within(t, patience), "work")
	if _, err := traced.Appends.Append(ctx, request("s", "a")); err != nil {
		t.Fatal(err)
	}
	work.End()
	if _, err := traced.Reads.CheckTail(t.Context(), &novapb.CheckTailRequest{Bucket: bucket, Stream: "missing"}); err == nil {
		t.Fatal("the tail of a stream that is not there")
	}
	// Spans leave in order: these come after those of the probes.
	awaitFlights(t, spans, 1, work.SpanContext().TraceID())
	for _, s := range spans.all() {
		if name := s.GetName(); strings.Contains(name, "grpc.") || strings.Contains(name, "health") || strings.HasPrefix(name, "/") || strings.HasPrefix(name, "GET") || strings.HasPrefix(name, "HTTP") {
			t.Errorf("span %q", name)
		}
	}
	wants := []string{
		// Rate, errors and duration, of each method and side.
		`rpc_server_call_duration_seconds_count{rpc_method="nova.v1.AppendService/Append",rpc_response_status_code="OK",rpc_system_name="grpc"} 2`,
		`rpc_server_call_duration_seconds_bucket{rpc_method="nova.v1.AppendService/Append",rpc_response_status_code="OK",rpc_system_name="grpc",le="+Inf"} 2`,
		`rpc_client_call_duration_seconds_count{rpc_method="nova.v1.AppendService/Append",rpc_response_status_code="OK",rpc_system_name="grpc"} 1`,
		`rpc_server_call_duration_seconds_count{rpc_method="nova.v1.ReadService/CheckTail",rpc_response_status_code="NotFound",rpc_system_name="grpc"}`,
		`nova_rpc_server_active{rpc_method="nova.v1.AppendService/Append",rpc_system_name="grpc"} 0`,
		`nova_objectstore_put_duration_seconds_count`,
		`nova_chainwriter_flight_duration_seconds_count`,
	}
	var metrics string
	// A call is counted when it is over, which may be after its answer.
	if err := poll(t.Context(), patience, func() error {
		metrics = page(t, node, "/metrics")
		for _, want := range wants {
			if !strings.Contains(metrics, want) {
				return fmt.Errorf("/metrics lacks %s", want)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if strings.Contains(metrics, `rpc_method="grpc.`) {
		t.Error("probes are counted as calls")
	}
	if t.Failed() {
		for line := range strings.Lines(metrics) {
			if strings.Contains(line, "AppendService/Append\"") && !strings.Contains(line, "_bucket") {
				t.Log(strings.TrimSpace(line))
			}
		}
	}
}

// page returns an admin page of a node.
func page(t *testing.T, n *novad.Node, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(within(t, 30*time.Second), http.MethodGet, "http://"+n.AdminAddr()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d, %v, %s", path, res.StatusCode, err, body)
	}
	http.DefaultClient.CloseIdleConnections()
	return string(body)
}
