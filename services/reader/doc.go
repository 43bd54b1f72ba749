// Package reader serves reads and subscriptions: it asks a stream's leader
// where committed records are, takes their chunks from the leader's tail window
// or from object storage through the cache, verifies them, and returns records.
// Where the settled ones are, the stream's head says. docs/read-path.md has the
// steps.
//
// Invariants:
//   - Only what the leader says is committed is returned (I3), contiguous and
//     byte for byte (I1, I2).
//   - Every chunk is verified before a record of it is returned; damaged bytes
//     are DATA_LOSS, never data (I10). What and where is in the log, not in the
//     answer.
//   - A head that does not reach what the leader knows to be settled is an old read,
//     and nothing of it is returned (I2). What is gone may have moved: head and leader
//     are asked again before anything is called lost.
//   - What is fetched for a call is bounded by its decoded size, however well it
//     is compressed; all calls share a budget, and subscriptions are counted (I8).
//     A message is sent when it is asked for, or when the last one was taken, and
//     the bytes of all of them have a budget.
package reader
