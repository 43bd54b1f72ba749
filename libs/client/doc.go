// Package client is the Go SDK of Nova: a thin layer over the generated gRPC
// clients that keeps the promises a caller would otherwise have to keep:
//
//   - A Session appends with a producer id. Whatever breaks on the way, it
//     reconnects and sends again what is not acknowledged, under the same
//     numbers of its own, so that each batch is stored once (I5), in order.
//   - A Subscription reconnects and resumes at the next number, and checks that
//     numbers and content hash continue: a gap, a repetition or a change is an
//     error, never silence.
package client
