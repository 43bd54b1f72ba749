package settler

import (
	"context"
	mathbits "math/bits"
	"time"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/stream"
)

// How long a stream's records are kept decides what they are stored with: an object
// stays until the last of its runs is dropped, and a run until the last of its
// records is. So streams share objects with those whose records go at about the
// same time, and a stream's runs are rewritten into such only as cover little of
// its limits.

// limits are how long, and how many bytes of, a stream's records are kept; 0: all.
type limits struct {
	age   time.Duration
	bytes uint64
	read  time.Time
}

const (
	// limitsFor is how long limits that were read are gone by: settings that are
	// changed matter little to what is stored meanwhile.
	limitsFor = time.Hour
	// maxLimits is of how many streams limits are remembered.
	maxLimits = 100_000
	// limitShare is which part of a stream's limits a rewritten run covers at most.
	limitShare = 8
)

// kin is equal for streams that may share objects: those of a bucket with ages
// within a factor of two, and a limit of bytes or none.
func (l limits) kin(bucket string) string {
	kind := byte('-')
	if l.bytes > 0 {
		kind = 'b'
	}
	return bucket + string([]byte{'/', kind, byte(mathbits.Len64(uint64(l.age / time.Minute)))})
}

// limitsOf returns a stream's limits. Whatever keeps them from being read, the
// stream is settled as one that has none.
func (e *engine) limitsOf(ctx context.Context, id stream.ID) limits {
	now := e.now()
	e.limitsMu.Lock()
	l, known := e.limits[id]
	e.limitsMu.Unlock()
	if known && now.Sub(l.read) < limitsFor {
		return l
	}
	d, err := e.index.GetDescriptor(ctx, id)
	if err != nil && !catalog.IsNotFound(err) {
		return limits{}
	}
	c := d.GetConfig()
	l = limits{age: time.Duration(c.GetRetentionAgeMs()) * time.Millisecond, bytes: c.GetRetentionBytes(), read: now}
	e.limitsMu.Lock()
	defer e.limitsMu.Unlock()
	if e.limits == nil || len(e.limits) >= maxLimits {
		e.limits = map[stream.ID]limits{}
	}
	e.limits[id] = l
	return l
}
