package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func setup(t *testing.T, cfg telemetry.Config) *telemetry.Telemetry {
	t.Helper()
	tel, err := telemetry.Setup(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Nobody listens where the test says; Shutdown must end all the same.
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = tel.Shutdown(ctx)
	})
	return tel
}

func TestTracesOnlyWhenSent(t *testing.T) {
	for _, c := range []struct {
		env    map[string]string
		traced bool
	}{
		{nil, false},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, true},
		{map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, true},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}, false},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"}, false},
	} {
		for _, k := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"} {
			t.Setenv(k, c.env[k])
		}
		tel := setup(t, telemetry.Config{Program: "p", Output: io.Discard})
		if _, off := tel.Tracer.(noop.TracerProvider); off == c.traced {
			t.Errorf("%v: traced %v, want %v", c.env, !off, c.traced)
		}
	}
}

func TestLogsNameTheirTrace(t *testing.T) {
	var out bytes.Buffer
	tel := setup(t, telemetry.Config{Program: "p", Node: "n1", JSON: true, Output: &out})
	ctx, span := sdktrace.NewTracerProvider().Tracer("").Start(context.Background(), "s")
	defer span.End()
	tel.Log.With("a", 1).InfoContext(ctx, "hello")
	tel.Log.DebugContext(ctx, "not at this level")
	for _, want := range []string{`"trace_id":"` + span.SpanContext().TraceID().String() + `"`, `"node":"n1"`, `"a":1`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s lacks %s", out.String(), want)
		}
	}
	if strings.Contains(out.String(), "not at this level") {
		t.Error("a debug record at level info")
	}
}

func TestLevel(t *testing.T) {
	if _, err := telemetry.Setup(context.Background(), telemetry.Config{Level: "loud"}); err == nil {
		t.Error("no such level")
	}
}

func TestAdminHandler(t *testing.T) {
	tel := setup(t, telemetry.Config{Program: "p", Output: io.Discard})
	counter, err := tel.Meter.Meter("x").Int64Counter("nova.test.things", metric.WithUnit("{thing}"))
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(context.Background(), 3)
	var why error
	h := tel.AdminHandler("novad", func() error { return why }, func() []telemetry.Fact {
		return []telemetry.Fact{{Name: "directory", Value: "<script>"}}
	})
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	for path, want := range map[string]string{
		"/metrics": "nova_test_things_total 3", "/healthz": "ok", "/readyz": "ok", "/": "Ready.", "/debug/pprof/": "goroutine",
	} {
		if code, body := get(path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	why = errors.New("3 shards are being recovered")
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, why.Error()) {
		t.Errorf("not ready: %d %s", code, body)
	}
	if code, _ := get("/healthz"); code != http.StatusOK {
		t.Errorf("alive but not ready: %d", code)
	}
	if _, body := get("/"); !strings.Contains(body, why.Error()) || strings.Contains(body, "<script>") {
		t.Errorf("status page: %s", body)
	}
	if code, _ := get("/nothing"); code != http.StatusNotFound {
		t.Errorf("an unknown path: %d", code)
	}
}
