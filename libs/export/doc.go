// Package export is the format of exports: what the metastore holds, written to
// the bucket, so that a constellation whose metastore is lost comes back from its
// buckets. An index writes them, a restore reads them.
//
// An export is a number of parts and, written last, a manifest: one without a
// manifest is incomplete, and one whose manifest is there has every part, with the
// size and checksum that the manifest says. Nothing is ever written over.
//
// # Why an export can be restored
//
// Rows change while they are read, so an export is no picture of one time. It need
// not be. Let B be the time at which the export began.
//
//  1. Every row of it was read after B, so it shows all changes that were done
//     before B, or later ones.
//  2. An object that was needed after B is there. What is dead is deleted only when
//     all exports that are kept began after it became dead (GetExportState tells
//     whoever deletes): the newest two complete ones. Restored is the newest, or the
//     one before it if that is damaged.
//  3. So an object that is gone was dead before B, and by 1 no row of the export
//     needs it: no head names it, if it is of settled records; if it is a slot or a
//     directory, the chain was settled beyond it before B, so every head has folded
//     what was in it.
//  4. What the chains hold beyond what a head has folded is in slots that are there.
//     A restore takes for settled only the slots that are gone, or whose directories
//     are, and leaves all others to be folded again. An entry that a head has folded
//     is passed over, so it does not matter by how much the head is newer than the
//     chain's record, or older.
//  5. A stream that the export does not know was not there at B, or was deleted
//     before its name was read. Of the former all entries are in slots that are
//     there: none was settled before B.
//
// Point 1 rests on reads that are not older than B. A metastore's reads may be old,
// so the writer first changes rows of many partitions: a server that took such a
// change after B knows of everything before it, as does any that succeeds it.
package export
