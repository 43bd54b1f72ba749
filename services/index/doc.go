// Package index owns the metastore: the schema of every record, the keys they
// lie under, and the rules of their changes. Every change is a compare-and-set
// (I6), and a change that breaks a record's rule is refused whatever the caller
// believes.
//
// Reads of a metastore may be stale; a decision rests on the result of a
// compare-and-set. A change whose reply was lost is recognised by the attempt
// id in the value. What changes several rows is an ordered, idempotent sequence
// (bucket_api.go, stream_api.go): each names its steps and what a crash leaves
// at them.
//
// Nothing scans a keyspace (I7): ranges are bounded by a page, and emptiness is
// asked with a range of one.
package index
