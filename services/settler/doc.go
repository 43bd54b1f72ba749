// Package settler does the background work on chains: it absorbs committed
// slots into directories, so that recovery and opening streams read few objects
// and the chain-writer's backlog stays small.
//
// Invariants kept here:
//   - Several settlers share the chains by rendezvous hashing. Two that work on
//     one chain at once do no harm: libs/chain decides by compare-and-set.
//   - A chain is absorbed when a window is full, or the oldest slot has waited for
//     Config.Interval; one that fails does not hold up the others.
//   - An idle open chain costs one small read per interval, one that is sealed
//     and absorbed nothing. Chains are listed from the oldest that needs work
//     (I7); only once an hour all of them, for those that a wrong clock dated back.
package settler
