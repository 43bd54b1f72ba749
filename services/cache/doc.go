// Package cache serves ranges of committed, immutable objects from memory and
// reads through to object storage. Deletes pass through it, so that cached
// bytes go with their object.
//
// It is never an authority: a miss falls through to the store, and a caller
// that cannot reach a cache reads the store itself. Objects are immutable under
// their key, so a page never has to be checked for age; callers verify
// checksums (I10). What is not there, and what failed, is not remembered. Memory
// is bounded by Config.Bytes for pages and Config.Loads for those on their way
// (I8).
package cache
