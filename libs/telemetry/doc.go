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
//
// One trace leads from a client to the PUT of its append:
//
//	client                              libs/client, if its caller has a span or it a tracer
//	nova.v1.AppendService/Append        at the gateway; below it the gateway's call
//	nova.v1.AppendService/Append        at the sequencer
//	sequencer.Append                    from arrival to answer; one for each batch of a session
//	chainwriter.Flight                  from launch to commit
//	objectstore.PUT                     each try and each hedge
//
// A flight carries the appends of many callers, but a span has one parent: the
// flight's is the first sampled append in it, and it has links to the others,
// parent and links together at most [MaxSpans]. So every sampled append leads to
// its flight, one of them by the tree and the rest by a link. Entries name their
// spans on the way to the chain-writer only while these are sampled (Entry.spans
// in chainwriter.proto); a flight without any has no span, and an object store
// call outside of a sampled trace has none either.
//
// Health checks, reflection and the admin pages make no spans.
package telemetry
