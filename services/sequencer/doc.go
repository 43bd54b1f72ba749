// Package sequencer leads shards: it numbers and timestamps the records of
// their streams, admits appends, keeps producer sessions, decides stream
// control, and serves the committed tail.
//
// The way of an append: append_api.go (resolve, reserve) -> stream.go (queue)
// -> pump.go (admit, number, encode) -> shard.go (entry number) -> link.go
// (to the chain-writer and back) -> stream.go (commit, acknowledge).
// docs/write-path.md tells it with what a crash leaves at each step.
//
// Locks, in the order they may be taken: shard.changing, openStream.mu, shard.mu,
// link.mu. None is held while something is sent, awaited or encoded, but for the
// first, which is for that.
//
// Invariants kept here:
//   - Numbers are given once: an entry number, a sequence number and the bytes
//     under them never change, whoever goes away (I1). Capacity is reserved
//     before numbers are assigned (I8).
//   - An acknowledgement is released only for an entry that the chain has
//     committed, in stream order (I2). Followers see only committed entries (I3).
//   - Nothing is sent to a chain before the compare-and-set that binds the shard
//     to it is confirmed; every loss of a chain or of leadership goes through
//     the one recovery path in recovery.go (I4).
//   - A refusal (SEQ_MISMATCH, FENCED, PRODUCER_*, STREAM_SEALED) is a promise:
//     it is held back until the state it saw is committed.
//   - Coordinates are forgotten only of records that are settled, and only from the
//     first on: what readers are told to look for in the head is there (I2).
//     See settled.go.
//   - Answers from memory hold only under a valid lease (lease.go).
package sequencer
