// Package rpc builds the gRPC servers and client connections of every service,
// over a network or within one process, so that both shapes behave alike.
//
// Invariants:
//   - One chain of interceptors serves both shapes: observation (span, metrics,
//     log), errors to statuses, recovery, validation, then the caller's own.
//   - A caller sees statuses only, never a Go error: what carries no status
//     becomes INTERNAL, or what its context error says, and its text stays in
//     the log.
//   - In process, messages are shared and not copied: a received message and all
//     below it is immutable for the receiver, and a sent one for the sender.
//   - An [Endpoint] that is stopping refuses new calls with UNAVAILABLE, lets
//     those under way end, and cancels what is left at its deadline. When Stop
//     returns no handler is running.
//   - Nothing here sends a call twice unless it surely never left.
//
// Streams in process are bounded: each direction holds one message in its
// buffer and one in the blocked sender's hand, so a slow reader stops its
// sender, as HTTP/2 flow control does over a network (which lets 64 KiB and
// more pass first). Sizes of messages are not limited in process. What handlers
// send with room of a budget is counted in both shapes until its receiver, or the
// network's transport, has taken it: package wire.
package rpc
