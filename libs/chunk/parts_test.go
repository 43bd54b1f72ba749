package chunk

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/nova-stream/nova/libs/stream"
)

// The parts of a chunk are as good as the whole, and its header may lose the
// producers and nothing else.
func TestPartsAreTheWhole(t *testing.T) {
	for name, in := range map[string]Input{"plain": sample(), "compressed": compressible()} {
		t.Run(name, func(t *testing.T) {
			b, _ := mustEncode(t, in)
			want, records, err := Decode(b)
			if err != nil {
				t.Fatal(err)
			}
			h, payload, err := Split(b)
			if err != nil || !reflect.DeepEqual(h, want) || !bytes.HasSuffix(b, payload) {
				t.Fatalf("%+v, %v", h, err)
			}
			if got, err := Open(&h, payload); err != nil || !sameRecords(got, records) {
				t.Errorf("opened %d records, %v", len(got), err)
			}
			anonymous := h.Anonymous()
			if !reflect.DeepEqual(h, want) {
				t.Error("the header itself was changed")
			}
			got, some, err := Join(anonymous, payload)
			for i := range want.Batches {
				want.Batches[i].Producer = stream.Producer{}
			}
			if err != nil || !reflect.DeepEqual(got, want) || !sameRecords(some, records) {
				t.Errorf("joined %+v with %d records, %v", got, len(some), err)
			}
		})
	}
}

// No change of a bit of a part passes, and no part that is too long or too short
// (I10).
func TestChangedPartsAreCorrupt(t *testing.T) {
	for _, in := range []Input{sample(), compressible()} {
		b, _ := mustEncode(t, in)
		h, payload, err := Split(b)
		if err != nil {
			t.Fatal(err)
		}
		header := h.Anonymous()
		refused := func(header, payload []byte) {
			t.Helper()
			if _, _, err := Join(header, payload); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Errorf("%d and %d bytes: %v", len(header), len(payload), err)
			}
		}
		for _, part := range [][]byte{header, payload} {
			for i := range part {
				part[i] ^= 1 << (i % 8)
				refused(header, payload)
				if &part[0] == &payload[0] {
					if _, _, err := Split(b); !errors.Is(err, ErrCorrupt) {
						t.Errorf("split with byte %d changed: %v", i, err)
					}
				}
				part[i] ^= 1 << (i % 8)
			}
		}
		refused(header[:len(header)-1], payload)
		refused(append(bytes.Clone(header), 0), payload)
		refused(append(bytes.Clone(header), payload...), payload)
		refused(header, payload[1:])
		refused(header, append(bytes.Clone(payload), 0))
		refused(nil, payload)
		refused(header, nil)
	}
}
