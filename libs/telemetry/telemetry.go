package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
)

// Config says what the process is. Zero values take the defaults.
type Config struct {
	Program string // service.name, unless OTEL_SERVICE_NAME is set
	Version string // service.version
	Node    string // service.instance.id, may be empty
	// Level of the log: debug, info, warn or error, default info.
	Level string
	// JSON: one JSON object per log line, otherwise key=value text.
	JSON bool
	// Output takes the log, default standard error.
	Output io.Writer
}

// Telemetry is what a process hands to its parts.
type Telemetry struct {
	Log     *slog.Logger
	Tracer  trace.TracerProvider
	Meter   metric.MeterProvider
	Metrics http.Handler // Prometheus text

	gatherer prometheus.Gatherer
	shutdown []func(context.Context) error
}

// ParseLevel returns the level of a log by its name.
func ParseLevel(s string) (slog.Level, error) {
	if s == "" {
		return slog.LevelInfo, nil
	}
	var l slog.Level
	if err := l.UnmarshalText([]byte(s)); err != nil {
		return 0, fmt.Errorf("log level %q: want debug, info, warn or error", s)
	}
	return l, nil
}

// Setup builds a process's telemetry; Shutdown MUST follow.
func Setup(ctx context.Context, cfg Config) (*Telemetry, error) {
	level, err := ParseLevel(cfg.Level)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	res, err := describe(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	t := &Telemetry{Log: newLogger(cfg, level), Tracer: nooptrace.NewTracerProvider()}
	if err := t.setupTraces(ctx, res); err != nil {
		return nil, fmt.Errorf("telemetry: traces: %w", err)
	}
	if err := t.setupMetrics(ctx, res); err != nil {
		return nil, errors.Join(fmt.Errorf("telemetry: metrics: %w", err), t.Shutdown(ctx))
	}
	return t, nil
}

// Shutdown sends what is still held, until ctx ends. The parts go at the same
// time, so that a collector that is gone costs each of them the wait only once.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(t.shutdown))
	for i, f := range t.shutdown {
		wg.Go(func() { errs[i] = f(ctx) })
	}
	wg.Wait()
	t.shutdown = nil
	return errors.Join(errs...)
}

func describe(ctx context.Context, cfg Config) (*resource.Resource, error) {
	attrs := []attribute.KeyValue{attribute.String("service.name", cfg.Program), attribute.String("service.version", cfg.Version)}
	if cfg.Node != "" {
		attrs = append(attrs, attribute.String("service.instance.id", cfg.Node))
	}
	// Last wins: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES.
	return resource.New(ctx, resource.WithAttributes(attrs...), resource.WithTelemetrySDK(), resource.WithFromEnv())
}

// exports reports whether the environment names a collector for a signal.
func exports(signal string) bool {
	if off, _ := strconv.ParseBool(os.Getenv("OTEL_SDK_DISABLED")); off || os.Getenv("OTEL_"+signal+"_EXPORTER") == "none" {
		return false
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
}

func (t *Telemetry) setupTraces(ctx context.Context, res *resource.Resource) error {
	if !exports("TRACES") {
		return nil
	}
	// Endpoint, headers and certificates come from OTEL_EXPORTER_OTLP_*; the
	// sampler from OTEL_TRACES_SAMPLER. Nothing is dialled here.
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return err
	}
	p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	t.Tracer = p
	t.shutdown = append(t.shutdown, p.Shutdown)
	return nil
}

func (t *Telemetry) setupMetrics(ctx context.Context, res *resource.Resource) error {
	// A registry of its own: two nodes of one process do not mix.
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		return err
	}
	opts := []sdkmetric.Option{sdkmetric.WithReader(reader), sdkmetric.WithResource(res)}
	if exports("METRICS") {
		exporter, err := otlpmetricgrpc.New(ctx)
		if err != nil {
			return err
		}
		opts = append(opts, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)))
	}
	p := sdkmetric.NewMeterProvider(opts...)
	t.Meter = p
	t.shutdown = append(t.shutdown, p.Shutdown)
	t.gatherer = registry
	t.Metrics = promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(t.Log.Handler(), slog.LevelWarn)})
	return nil
}
