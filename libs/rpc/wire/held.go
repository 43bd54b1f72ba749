package wire

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	protobuf "google.golang.org/protobuf/proto"
)

// held is a message that gives back its room when the transport has written it.
type held struct {
	msg  protobuf.Message
	room *Room
}

// ServerStream is what a message is sent on.
type ServerStream interface {
	Context() context.Context
	SendMsg(m any) error
}

// Send sends a message in its room, which is given back when the transport has
// written all of it, or when the receiver of the same process has it. The message
// MUST NOT be changed any more.
//
// gRPC queues one message whatever its size, and what is queued cannot be taken
// back: so no message may be sent before [Room.Taken] of the one before.
func Send(srv ServerStream, msg protobuf.Message, room *Room) error {
	room.bind(srv.Context())
	err := srv.SendMsg(&held{msg, room})
	if err != nil {
		room.Free()
	}
	return err
}

// bind notes the connection that gets the message.
func (r *Room) bind(ctx context.Context) {
	c := connOf(ctx)
	if c != nil {
		// What a compressor makes of the message would not be counted.
		_ = grpc.SetSendCompressor(ctx, encoding.Identity) // fails from the second message on
	}
	b := r.call.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if c == nil {
		r.sending(nil)
		return
	}
	if !c.add(r) {
		r.free()
		return
	}
	r.conn = c
	r.sending(func() { _ = c.Close() })
}

// Unwrap returns the message that was sent with [Send] or as it is, and what the
// one who has it now calls.
func Unwrap(m any) (msg any, taken func()) {
	if h, ok := m.(*held); ok {
		return h.msg, h.room.Free
	}
	return m, func() {}
}

// leastHeld is the smallest buffer whose end gRPC tells.
const leastHeld = 2 << 10

// marshal encodes the message into a buffer that gives the room back.
func (h *held) marshal() (mem.BufferSlice, error) {
	size := protobuf.Size(h.msg)
	buf := buffers.Get(max(size, leastHeld))
	b, err := protobuf.MarshalOptions{UseCachedSize: true}.MarshalAppend((*buf)[:0], h.msg)
	if err != nil {
		buffers.Put(buf)
		h.room.Free()
		return nil, err
	}
	*buf = b
	h.room.Shrink(int64(cap(b)))
	return mem.BufferSlice{mem.NewBuffer(buf, returned{h.room})}, nil
}

// returned is the pool of one buffer.
type returned struct{ room *Room }

// Get implements mem.BufferPool.
func (returned) Get(n int) *[]byte { return buffers.Get(n) }

// Put implements mem.BufferPool.
func (p returned) Put(b *[]byte) {
	buffers.Put(b)
	p.room.conn.remove(p.room)
	p.room.Free()
}

// conn is a connection that knows what its transport holds: gRPC does not give
// back what it has when a connection ends.
type conn struct {
	net.Conn

	mu     sync.Mutex
	closed bool
	rooms  map[*Room]struct{}
}

// Track returns a listener whose connections [Send] and [Reply] know.
func Track(l net.Listener) net.Listener { return tracked{l} }

type tracked struct{ net.Listener }

// Accept implements net.Listener.
func (t tracked) Accept() (net.Conn, error) {
	c, err := t.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, rooms: map[*Room]struct{}{}}, nil
}

// address leads from a peer's address to its connection.
type address struct {
	net.Addr
	conn *conn
}

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return address{c.Conn.RemoteAddr(), c} }

// Close implements net.Conn.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	c.closed = true
	rooms := c.rooms
	c.rooms = nil
	c.mu.Unlock()
	for r := range rooms {
		r.Free()
	}
	return err
}

// add is called with the budget's mu held, which is taken before that of conn.
func (c *conn) add(r *Room) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.rooms[r] = struct{}{}
	}
	return !c.closed
}

func (c *conn) remove(r *Room) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.rooms, r)
}

func connOf(ctx context.Context) *conn {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	a, _ := p.Addr.(address)
	return a.conn
}

// Replying is the room of a unary call's answer.
type Replying struct {
	mu   sync.Mutex
	room *Room
	over bool
}

type replyKey struct{}

// In prepares a handler's context for [Reply].
func (r *Replying) In(ctx context.Context) context.Context {
	return context.WithValue(ctx, replyKey{}, r)
}

// Reply keeps room for the answer of a unary call until the transport has written
// it; what was kept before is given back. A server that does not know of rooms gives
// it back with the call.
func Reply(ctx context.Context, room *Room) {
	r, _ := ctx.Value(replyKey{}).(*Replying)
	if r == nil {
		return
	}
	room.detach()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		room.Free()
		return
	}
	r.room.Free()
	r.room = room
}

// take returns the room, nil if there is none. What comes later is given back.
func (r *Replying) take() *Room {
	r.mu.Lock()
	defer r.mu.Unlock()
	room := r.room
	r.room, r.over = nil, true
	return room
}

// Free gives back what nobody will take.
func (r *Replying) Free() { r.take().Free() }

// UnaryServer is the outermost interceptor of a network's server.
func UnaryServer(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	reply := &Replying{}
	defer reply.Free()
	res, err := handler(reply.In(ctx), req)
	m, ok := res.(protobuf.Message)
	if err != nil || !ok {
		return res, err
	}
	room := reply.take()
	if room == nil {
		return res, nil
	}
	room.bind(ctx)
	return &held{m, room}, nil
}

// Kept is the room of an answer that a caller of the same process has.
type Kept struct {
	mu    sync.Mutex
	rooms []*Room
	over  bool
}

type keptKey struct{}

// Keep has the rooms of the answers to calls with the context kept, when they are
// of this process. [Kept.Free] MUST follow.
func Keep(ctx context.Context) (context.Context, *Kept) {
	k := &Kept{}
	return context.WithValue(ctx, keptKey{}, k), k
}

// Delivered hands an answer's room to its caller, if that keeps it.
func (r *Replying) Delivered(caller context.Context) {
	room := r.take()
	if room == nil {
		return
	}
	k, _ := caller.Value(keptKey{}).(*Kept)
	if k == nil || !k.add(room) {
		room.Free()
	}
}

func (k *Kept) add(r *Room) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.over {
		k.rooms = append(k.rooms, r)
	}
	return !k.over
}

// Sending is [Room.Sending] of all that is kept.
func (k *Kept) Sending(kill func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range k.rooms {
		r.Sending(kill)
	}
}

// Free gives all of it back.
func (k *Kept) Free() {
	k.mu.Lock()
	rooms := k.rooms
	k.rooms, k.over = nil, true
	k.mu.Unlock()
	for _, r := range rooms {
		r.Free()
	}
}
