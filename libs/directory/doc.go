// Package directory is the format of a directory: an immutable object that
// merges the footers of a window of slots of one chain, ordered by stream, so
// that all entries of one stream in the window are found with two reads.
// docs/formats.md specifies the bytes.
//
// A directory holds only entries that the absorber accepted: committed, and of
// an epoch that no earlier entry of the shard ended.
//
// Every error of damaged bytes wraps ErrCorrupt; nothing here panics on input.
package directory
