package wire

import (
	"bytes"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The bytes are those of gRPC's own codec, for every size of buffer, and what
// was unmarshalled stays as it is when the buffers are used again.
func TestCodec(t *testing.T) {
	stock := encoding.GetCodecV2(proto.Name)
	var kept []*wrapperspb.BytesValue
	sizes := []int{0, 1, 255, 1023, 1024, 1025, 32 << 10, 64<<10 - 3, 64 << 10, 100 << 10, 1<<20 - 4, 1 << 20, 8 << 20, 9 << 20}
	for i, n := range sizes {
		in := &wrapperspb.BytesValue{Value: bytes.Repeat([]byte{byte(i + 1)}, n)}
		got, err := codec.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		want, err := stock.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Materialize(), want.Materialize()) {
			t.Fatalf("%d bytes: other bytes than gRPC's codec", n)
		}
		// As a connection has it: in pieces.
		whole, pieces := got.Materialize(), mem.BufferSlice{}
		for len(whole) > 0 {
			k := min(len(whole), 16<<10)
			pieces = append(pieces, mem.Copy(whole[:k], buffers))
			whole = whole[k:]
		}
		out := &wrapperspb.BytesValue{}
		if err := codec.Unmarshal(pieces, out); err != nil {
			t.Fatal(err)
		}
		pieces.Free()
		got.Free()
		want.Free()
		kept = append(kept, out)
	}
	for i, n := range sizes {
		if want := (&wrapperspb.BytesValue{Value: bytes.Repeat([]byte{byte(i + 1)}, n)}); !protobuf.Equal(kept[i], want) {
			t.Errorf("%d bytes changed after they were unmarshalled", n)
		}
	}
}

func TestCodecRefuses(t *testing.T) {
	if _, err := codec.Marshal("text"); err == nil {
		t.Error("a string was marshalled")
	}
	if err := codec.Unmarshal(nil, new(string)); err == nil {
		t.Error("a string was unmarshalled")
	}
	if err := codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer([]byte{0xff})}, &wrapperspb.BytesValue{}); err == nil {
		t.Error("bytes that are no message were unmarshalled")
	}
}

// A buffer has the length that was asked for, its size is pooled up to the largest,
// and one that is put back is not given to two.
func TestBuffers(t *testing.T) {
	for _, n := range []int{0, 1, 255, 256, 257, 4096, 4097, 1<<23 - 1, 1 << 23, 1<<23 + 1} {
		a, b := buffers.Get(n), buffers.Get(n)
		if len(*a) != n || len(*b) != n || cap(*a) < n {
			t.Fatalf("%d bytes: got %d of %d and %d", n, len(*a), cap(*a), len(*b))
		}
		if n > 0 && &(*a)[0] == &(*b)[0] {
			t.Fatalf("%d bytes: the same buffer twice", n)
		}
		*a = (*a)[:n/2] // as a message that is shorter leaves it
		buffers.Put(a)
		buffers.Put(b)
		if c := buffers.Get(n); len(*c) != n {
			t.Fatalf("%d bytes: got %d from the pool", n, len(*c))
		}
	}
	// What the pool did not make does not come back too short.
	odd := make([]byte, 1000)
	buffers.Put(&odd)
	for range 100 {
		if b := buffers.Get(1000); len(*b) != 1000 || cap(*b) != 1024 {
			t.Fatalf("%d of %d bytes", len(*b), cap(*b))
		}
	}
}
