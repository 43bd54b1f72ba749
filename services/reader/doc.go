// Package reader serves reads and subscriptions: it asks a stream's leader
// where committed records are, takes their chunks from the leader's tail window
// or from object storage through the cache, verifies them, and returns records.
//
// Invariants:
//   - Only what the leader says is committed is returned (I3), contiguous and
//     byte for byte (I1, I2).
//   - Every chunk is verified before a record of it is returned; damaged bytes
//     are DATA_LOSS, never data (I10). What and where is in the log, not in the
//     answer.
//   - A page and what is fetched ahead for it are bounded (I8).
package reader
