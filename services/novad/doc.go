// Package novad is all eight services in one process: the same servers behind
// the same interceptors as in programs of their own, called through in-process
// connections. It is the only package that imports several services.
//
// Invariants:
//   - Nothing here serves or stores by itself: what novad does, the services do.
//   - With a directory, its file lock is taken before anything in it is opened
//     and given back after all else: whoever holds it knows that every former
//     life of that directory is dead.
//   - The object store is probed before any service starts.
//   - Start and stop orders are those of services/node; callees start first:
//     index, cache, chain-writer, sequencer, settler, reaper, reader, gateway.
//     So the public listeners close first, the sequencer hands its shards back
//     while its chain-writer and index still work, and the index goes last.
package novad
