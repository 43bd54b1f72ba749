// Package head holds the state of one stream at a position of its shard's log,
// and the one function that moves it: Fold. Opening a stream folds in memory;
// settling folds and writes the result by compare-and-set. Both therefore agree.
//
// Invariants:
//   - Entries apply in the order of stream.Position, each at most once (I1, I5).
//   - The tail grows without gaps (I1); timestamps never decrease (I9); trim
//     never goes back; SEALED and DELETED are final.
//   - A head's record holds all that a fold knows: going on from a record that
//     was read back gives what going on in memory gives (Read, Write).
//   - The producer table is bounded (I8), and forgetting a producer never lets
//     one of its batches be stored twice (I5): see Producers.
package head
