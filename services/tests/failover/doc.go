// Package failover proves "never lose, never lie": clients use a few streams at
// once while a nemesis hurts the constellation, and what every call was told is
// judged.
//
// A round makes fresh streams. Every call on them becomes an operation: what was
// asked, what was answered, and the interval between. Two judges look at the
// history of one stream:
//
//   - observations (observe_test.go): all that was ever said about one sequence
//     number must agree: body, timestamp, content hash. Numbers have no gap (I1),
//     timestamps never decrease (I9), the content hash follows from the records,
//     nothing is stored twice (I5).
//   - linearizability (model_test.go, judge_test.go): Porcupine looks for an order
//     of the operations, each at one moment between request and answer, in which a
//     simple model of a stream gives the same answers (I2, I3, I4). The model
//     carries a running hash of all bodies. Refusals are judged like successes:
//     what they claim must be true at that moment. What was UNKNOWN may take
//     effect at any moment after its request, or never.
//
// What the clients store is settled and reclaimed meanwhile (upkeep_test.go): ages
// and intervals are short, and of a pair markers become due as if hours or days had
// passed. A round ends when all is settled and no slot is left; everything is read
// once more then, and "verify --all" must find nothing. One stream, the elder, lives
// through all rounds; the others are deleted during the next. An error in a log
// fails a run, and so does one in which too little was settled.
//
// The nemesis of one process (pair_test.go) is faults between two nodes and the
// stores they share; that of the split shape (split_test.go) is signals to real
// processes. `make soak` runs both for NOVA_SOAK, an hour if unset, and rounds of
// kills that measure how long streams are silent (kill_test.go). NOVA_SEED
// repeats the choices of a run as far as scheduling allows. With NOVA_EXPORTS=2s the
// metadata are exported so often, and a run on a pair ends with a restore. `make soak`
// also loses the metastore of separate processes, NOVA_SOAK_LOSSES times, and restores
// it while clients try again (split_lost_soak_test.go).
package failover
