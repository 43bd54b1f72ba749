// Package routing finds the sequencer that leads a shard, or a named stream, and
// calls it.
//
// Invariants:
//   - Hints, redirects and the list of sequencers only say where to ask; the
//     sequencer itself knows whether it leads.
//   - Do calls again only what was certainly not done: NOT_LEADER, no leader
//     yet, a failure marked NOT_COMMITTED, a call that never left.
//   - A hint of a higher epoch wakes every call that waits for its shard, and what
//     another sequencer owes an answer to is given up shortly after: as not done
//     if it was not sent, else as unknown.
//   - While a shard has no leader, how often the sequencers are asked does not
//     depend on how many calls wait.
//   - Trying ends with the context, or after Config.Patience since the first
//     failure; NOT_LEADER never leaves this package, except as
//     the end of a session that a leader had opened.
package routing
