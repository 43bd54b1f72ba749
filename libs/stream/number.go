package stream

// Seq numbers the records of a stream: 0, 1, 2, ... without gaps (I1).
type Seq uint64

// Epoch counts the leaderships of one shard, from 1. Epoch 0 is "never led".
type Epoch uint64

// EntryNo numbers the entries of one (shard, epoch) in its chain, from 0. It
// is never reused or given to other bytes under that epoch.
type EntryNo uint64

// Slot numbers the write-once registers of a chain, from 0.
type Slot uint64

// Shard numbers the shards of a constellation, from 0.
type Shard uint32

// Millis is a time in milliseconds since the Unix epoch.
type Millis int64

// Hash is the running content hash of a stream; 0 before the first record.
// Its input is specified in docs/formats.md. It detects loss, repetition,
// reordering and change; it is not a signature.
type Hash uint64

// Profile is a storage profile: how many registers a slot has. It is chosen
// when a stream is created and never changes.
type Profile uint8

// The storage profiles.
const (
	// ProfileStandard stores each slot in one register: one bucket.
	ProfileStandard Profile = 1
	// ProfileExpress stores each slot in n zone buckets, majority q.
	ProfileExpress Profile = 2
)

func (p Profile) String() string {
	switch p {
	case ProfileStandard:
		return "standard"
	case ProfileExpress:
		return "express"
	}
	return "unknown"
}
