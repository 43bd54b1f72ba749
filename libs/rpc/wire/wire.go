// Package wire sets gRPC's connections up for messages from a few bytes to
// megabytes: append batches and what readers get. Servers and clients use it
// alike, and understand those that do not.
//
// It also bounds what waits to be written to peers: a [Budget] has room for it,
// which a message carries until the transport has written it ([Send], [Reply]).
package wire

import (
	"fmt"
	"math/bits"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

const (
	// streamWindow and connWindow are what a peer may send before the other side
	// has read it: a batch of any size but the largest never waits for that. They
	// bound the memory that a connection takes from a peer.
	streamWindow = 4 << 20
	connWindow   = 8 << 20
	// ioBuffer is read and written at once: a call to the system for each costs
	// more than the copy. Memory for it is held only while there is something.
	ioBuffer = 128 << 10
)

// DialOptions are those of a client.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec)),
		experimental.WithBufferPool(buffers),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithReadBufferSize(ioBuffer), grpc.WithWriteBufferSize(ioBuffer),
	}
}

// ServerOptions are those of a server.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec),
		experimental.BufferPool(buffers),
		grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connWindow),
		grpc.ReadBufferSize(ioBuffer), grpc.WriteBufferSize(ioBuffer),
	}
}

// Codec is the one of both, for those who put something around it.
func Codec() encoding.CodecV2 { return codec }

// buffers is the pool of both sides: gRPC's own clears all of a buffer each time.
var buffers mem.BufferPool = &tiers{}

// The sizes that are pooled are the powers of two from smallest to largest.
const (
	smallest = 8
	largest  = 23
)

// tiers is a pool of buffers by size. Their content is whatever was there: who
// gets one fills it first, as gRPC does.
type tiers [largest - smallest + 1]sync.Pool

// tier returns the smallest size that holds n bytes, as its power of two.
func tier(n int) int { return max(bits.Len(uint(max(n, 1)-1)), smallest) }

// Get implements mem.BufferPool.
func (t *tiers) Get(n int) *[]byte {
	p := tier(n)
	if p > largest {
		b := make([]byte, n)
		return &b
	}
	if b, ok := t[p-smallest].Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, 1<<p)
	return &b
}

// Put implements mem.BufferPool.
func (t *tiers) Put(b *[]byte) {
	p := bits.Len(uint(cap(*b))) - 1
	if p >= smallest && p <= largest && cap(*b) == 1<<p {
		t[p-smallest].Put(b)
	}
}

// codec is gRPC's Protobuf codec with buffers as its pool. The one that is
// registered uses another pool, or, when a library has registered its own, none.
var codec encoding.CodecV2 = pooled{}

type pooled struct{}

// Name is that of gRPC's codec: the bytes are the same.
func (pooled) Name() string { return proto.Name }

// Marshal implements encoding.CodecV2.
func (pooled) Marshal(v any) (mem.BufferSlice, error) {
	if h, ok := v.(*held); ok {
		return h.marshal()
	}
	m, ok := v.(protobuf.Message)
	if !ok {
		return nil, fmt.Errorf("marshal: a %T is no Protobuf message", v)
	}
	size, write := sizeOf(m)
	if mem.IsBelowBufferPoolingThreshold(size) {
		b, err := write(make([]byte, 0, size))
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	buf := buffers.Get(size)
	b, err := write((*buf)[:0])
	if err != nil {
		buffers.Put(buf)
		return nil, err
	}
	*buf = b
	return mem.BufferSlice{mem.NewBuffer(buf, buffers)}, nil
}

// sizeOf returns how long a message is, and what appends it.
func sizeOf(m protobuf.Message) (int, func(dst []byte) ([]byte, error)) {
	if a, ok := m.(*novapb.AppendSessionRequest); ok {
		if size, inner, ok := batchSize(a); ok {
			return size, func(dst []byte) ([]byte, error) { return writeBatch(dst, a, inner), nil }
		}
	}
	opts := protobuf.MarshalOptions{UseCachedSize: true} // computed just now
	return protobuf.Size(m), func(dst []byte) ([]byte, error) { return opts.MarshalAppend(dst, m) }
}

// Unmarshal implements encoding.CodecV2. The message refers to nothing of data.
func (pooled) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(protobuf.Message)
	if !ok {
		return fmt.Errorf("unmarshal: a %T is no Protobuf message", v)
	}
	if a, ok := m.(*novapb.AppendSessionRequest); ok {
		b := join(data)
		if readBatch(b, a) {
			return nil
		}
		return protobuf.Unmarshal(b, a)
	}
	buf := data.MaterializeToBuffer(buffers)
	defer buf.Free()
	return protobuf.Unmarshal(buf.ReadOnlyData(), m)
}
