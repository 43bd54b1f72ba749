// Package telemetry sets up what a process tells about itself: traces, metrics,
// logs, and the admin pages.
//
// Invariants:
//   - Without OTEL_EXPORTER_OTLP_ENDPOINT (or its signal's own variable) nothing
//     is sent and traces are not made at all; metrics are always there for
//     /metrics.
//   - Nothing global is set: every provider is handed to who needs it.
//   - A log record made with a context carries the trace it belongs to.
//   - The admin pages have no access control; they belong on a private address.
package telemetry
