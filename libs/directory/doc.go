// Package directory is the format of a directory: an immutable object that
// merges the footers of a window of slots of one chain, ordered by stream, so
// that all entries of one stream in the window are found by one read beside the
// index. docs/formats.md specifies the bytes.
//
// The index names every stream of the window, instead of blocks of streams: a
// stream that has nothing in a window, which is the usual case, costs no read.
//
// A directory holds only entries that the absorber accepted: committed, and of
// an epoch that no earlier entry of the shard ended.
//
// Damaged bytes are an error that wraps ErrCorrupt, and are never taken for
// entries (I10); nothing here panics on input.
package directory
