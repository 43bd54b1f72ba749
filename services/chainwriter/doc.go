// Package chainwriter writes chains: it pools the entries of many shards into
// flights, puts them into the slots of its life's chain, and answers in chain
// order. It also fences shards in its chain, and seals, absorbs and looks up any
// chain for whoever recovers.
//
// Invariants kept here:
//   - Of each (shard, epoch) the chain holds entries 0, 1, 2, ... in order, each
//     once: only the next number is accepted, a duplicate joins the pending one.
//   - Any entry raises its shard's fence to its epoch; lower epochs are refused
//     from then on (I4). A fence's cut is decided when its slot is committed.
//   - Every entry is verified on arrival and carries its checksum on (I10).
//   - A chain that broke is not offered any more, whether or not it can be sealed
//     yet; while its store is in doubt, the next one is offered only once its
//     first slot was taken. Those that wait to be sealed are bounded (I8).
//   - The pool, a flight, the remembered commits, the backlog of slots not yet
//     absorbed and what is not yet settled are bounded (I8); at the limit nothing
//     more is taken in.
package chainwriter
