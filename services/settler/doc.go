// Package settler does the background work on chains: it absorbs committed
// slots into directories, so that recovery and opening streams read few objects
// and the chain-writer's backlog stays small; and it settles what is absorbed:
// moves records into objects ordered by stream, which the streams' heads name, so
// that slots can be reclaimed. docs/settling.md says how, step by step.
//
// Invariants kept here:
//   - Several settlers share the chains by rendezvous hashing. Two that work on
//     one chain at once do no harm: libs/chain decides by compare-and-set, and so
//     does settling, of heads, of objects' rows, and of settled_to.
//   - A chain is absorbed when a window is full, or the oldest slot has waited for
//     Config.Interval; one that fails does not hold up the others.
//   - Entries are folded into heads in the order of their positions: those of a
//     chain after all of their shard in lower chains (I1).
//   - settled_to moves when the heads of all streams of the span hold it, and what
//     they cannot hold is pinned (I2).
//   - Whatever a settler writes has a marker that leads to it before it is there,
//     until a head names it (I11).
//   - A stream that has little in each span has few runs all the same: small ones
//     become one, each byte once per generation (I8). See rewrite.go.
//   - An object of which most is dead is compacted: what heads name of it moves to
//     another, and less is copied than goes by it (I8). See compact.go.
//   - What is held in memory is bounded by Config.SettleMemory (I8).
//   - An idle open chain costs one small read per interval, one that is sealed
//     and settled nothing. Chains are listed from the oldest that needs work
//     (I7); only once an hour all of them, for those that a wrong clock dated back.
package settler
