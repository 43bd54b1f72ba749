// Package chain implements the chain of numbered slots: appending flights in
// commit order, sealing, absorbing into directories, and looking entries up.
// The chain-writer appends; it and the settler seal and absorb any chain.
//
// A slot is a write-once register: one object, created with a condition. It is
// committed when its bundle is there, all lower slots are committed, and it is
// below the recorded cut.
//
// Why a writer that was frozen for any time cannot acknowledge wrongly (I4):
// the SEAL at the cut is never deleted, so a flight for that slot meets it, and
// a flight above it, though it may land, has it below: commits are released in
// slot order. A flight below the cut that lands once more, because its slot was
// reclaimed meanwhile, is the very flight that was committed there: the slot
// number belongs to the writer that took it, and its bytes do not change.
// Saying so is the truth. What such a late flight leaves behind is deleted when
// the chain retires.
package chain
