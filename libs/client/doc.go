// Package client is the Go SDK of Nova: a thin layer over the generated gRPC
// clients that keeps the promises a caller would otherwise have to keep:
//
//   - A Session appends with a producer id. Whatever breaks on the way, it
//     reconnects and sends again what is not acknowledged, under the same
//     numbers of its own, so that each batch is stored once (I5), in order. When
//     it gives up it says what is stored for certain, and whether the rest is
//     certainly not stored or unknown; never NOT_COMMITTED on a guess.
//   - A Subscription reconnects and resumes at the next number of the same
//     stream; Read does so between pages. Both check that numbers and content
//     hash continue: a gap, a repetition or a change is an error, never silence.
//   - Nothing waits for ever: dead connections and servers that hang are left,
//     and each try has its limit.
//
// Package reason tells the reason, metadata and outcome of every error.
package client
