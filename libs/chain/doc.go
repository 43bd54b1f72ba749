// Package chain implements the chain of numbered slots: appending flights in
// commit order, sealing, absorbing into directories, and looking entries up.
// The chain-writer appends; it and the settler seal and absorb any chain.
//
// A slot is a write-once register: one object, created with a condition. It is
// committed when its bundle is there, all lower slots are committed, and it is
// below the recorded cut. With one register per slot (n = q = 1) whoever sees a
// bundle in a slot, and bundles in all lower ones, sees what is final: nothing
// ever takes the place of a bundle, so no sealer can put its SEAL below it.
//
// Invariants:
//   - A slot is never skipped, and a flight's bytes go to one slot only.
//   - A commit is released when all lower slots are committed (I2, I3).
//   - A cut is decided once, by a compare-and-set of the chain's record; what a
//     SEAL alone says decides nothing (I4).
//   - A claimed window is finished, not replaced, so a slot is in one directory.
//
// # Damaged slots
//
// A slot that is damaged around its entries is read from the rest of it, if that
// proves that nothing is missing. Else work on the chain stops there: nobody can
// tell of which streams entries are lost, and their numbers would be given again
// (I1, I2). An object that cannot be identified is taken neither for a bundle,
// which would make a SEAL's slot a committed one, nor for a SEAL, which would
// lose what was acknowledged.
//
// # Frozen writers
//
// Why a writer that was frozen for any time cannot acknowledge wrongly (I4),
// without looking at a clock. Let its flight be for slot n and the cut be c.
//
//   - n = c: the SEAL at the cut is never deleted, also not when the chain
//     retires, so the PUT meets it for ever.
//   - n > c: the PUT may land, where nothing is or no longer is. Its commit waits
//     for slot c, which holds the SEAL. What it leaves is deleted when the chain
//     retires; no reader looks above a cut.
//   - n < c: the slot was committed, and slots belong to one writer, whose flights
//     keep their slot: the bundle committed there was this flight. If the slot was
//     reclaimed and the PUT lands once more, acknowledging it is the truth.
//
// So the age of a flight need not be compared with anything before its commit is
// released. It would have to be if SEALs were ever deleted.
//
// # Old records
//
// A sealer that works from a stale record may put a SEAL into a slot that was
// reclaimed, below absorbed_to. Its compare-and-set fails. If the writer meets
// this SEAL, repeating a PUT whose reply it lost, it finishes the seal and learns
// from the recorded cut, which lies above, that its flight is committed. The SEAL
// is deleted when the chain retires.
//
// To who works from a stale record, slots that were reclaimed look lost. Nobody
// is alarmed, and no work stops, before a change of the record has proven that it
// is no old read.
package chain
