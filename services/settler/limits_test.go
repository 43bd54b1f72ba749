package settler

import (
	"testing"
	"time"

	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// limit puts the limits of a stream.
func (l *log) limit(age time.Duration, bytes uint64) {
	l.w.t.Helper()
	d, err := l.w.index.GetDescriptor(l.w.ctx, &indexpb.GetDescriptorRequest{StreamId: l.id.String()})
	if err != nil {
		l.w.t.Fatal(err)
	}
	_, err = l.w.index.UpdateStream(l.w.ctx, &indexpb.UpdateStreamRequest{
		Bucket: l.bucket, Stream: d.GetStream().GetName(), StreamId: l.id.String(),
		Config: &novapb.StreamConfig{
			RetentionAgeMsPresence: &novapb.StreamConfig_RetentionAgeMs{RetentionAgeMs: age.Milliseconds()},
			RetentionBytesPresence: &novapb.StreamConfig_RetentionBytes{RetentionBytes: bytes},
		},
	})
	if err != nil {
		l.w.t.Fatal(err)
	}
}

// Objects are shared by streams whose records go at about the same time, so that
// what is kept keeps little else.
func TestObjectsAreSharedByStreamsOfLikeLimits(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		kinds := []limits{{}, {age: time.Hour}, {age: 30 * 24 * time.Hour}, {bytes: 1 << 20}, {age: time.Hour, bytes: 1 << 20}}
		of := map[*log]int{}
		for i := range 4 * len(kinds) {
			l := w.open("first")
			of[l] = i % len(kinds)
			l.limit(kinds[of[l]].age, kinds[of[l]].bytes)
			l.append(1, 100)
		}
		c.absorb()
		w.process(Config{}).must(w)
		objects := map[string]int{}
		for l, kind := range of {
			for _, r := range l.head().GetRefs() {
				if k, seen := objects[r.GetObject()]; seen && k != kind {
					t.Errorf("an object is shared by streams with the limits %v and %v", kinds[k], kinds[kind])
				}
				objects[r.GetObject()] = kind
			}
		}
		if len(objects) != len(kinds) {
			t.Errorf("%d objects, want one per kind", len(objects))
		}
	})
}
