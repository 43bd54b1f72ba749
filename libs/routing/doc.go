// Package routing finds the sequencer that leads a shard, or a named stream, and
// calls it.
//
// Invariants:
//   - Hints, redirects and the list of sequencers only say where to ask; the
//     sequencer itself knows whether it leads.
//   - Do calls again only what was certainly not done: NOT_LEADER, no leader
//     yet, a failure marked NOT_COMMITTED, a call that never left.
//   - Trying ends with the context, or after Config.Patience since the first
//     failure; NOT_LEADER never leaves this package, except as
//     the end of a session that a leader had opened.
package routing
