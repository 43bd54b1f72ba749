// Package restore brings a constellation back whose metastore is lost: from the
// newest export of the metadata in its bucket, and from what the chains there hold
// beyond it. It is an offline tool: no program of the constellation may run, and it
// may list the bucket, which nothing else may (I7).
//
// Invariants:
//   - A metastore that holds a constellation is never touched.
//   - Until all is there no program can open the constellation: its row is one that
//     none can decode. A restore that was stopped anywhere is run again, and does
//     the same again.
//   - Nothing is deleted from the bucket. What nothing names any more gets a marker,
//     and goes as anything else does.
//   - Every chain is sealed before its records are used, so a program that still runs
//     somewhere, frozen for any time, acknowledges nothing any more (I4).
//   - What was acknowledged is there (I1, I2): libs/export says why, docs/restore.md
//     what is lost.
package restore
