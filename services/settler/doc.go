// Package settler does the background work on chains: it absorbs committed
// slots into directories, so that recovery and opening streams read few objects
// and the chain-writer's backlog stays small.
//
// Several settlers share the chains by rendezvous hashing; two that work on one
// chain at once do no harm (libs/chain). An idle chain costs one small read
// every few seconds; a chain that is sealed and absorbed costs nothing.
package settler
