// Package stream holds the words every Nova service shares: identifiers,
// numbers, records, and where bytes of a stream lie. It is a leaf: it imports
// nothing else of Nova.
//
// Each number has a type of its own, so that a sequence number can never be
// passed where an epoch, a slot or an entry number is meant.
package stream
