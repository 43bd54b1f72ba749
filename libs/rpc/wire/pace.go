package wire

import (
	"context"
	"time"

	protobuf "google.golang.org/protobuf/proto"
)

// Sizes of a subscription's messages, in encoded bytes.
const (
	// LeastMessage is what every subscription may have in the air at any time.
	LeastMessage = 16 << 10
	// MostMessage is what one message has whose peer keeps up.
	MostMessage = 1 << 20

	firstMessage = 64 << 10
	// A message that was taken within prompt lets the next be larger; one that was
	// not within late makes it the smallest.
	prompt = 50 * time.Millisecond
	late   = 250 * time.Millisecond
)

// Cost is the room that a message needs of so many encoded bytes: it is held
// decoded and encoded for a moment.
func Cost(encoded int64) int64 { return 2 * encoded }

// Pace sends a subscription's messages, none before the one before was taken, and
// says how large the next should be. Use it from one goroutine.
type Pace struct {
	call *Call
	size int64
	last *Room // of the message sent last; nil: taken
	sent time.Time
}

// NewPace returns a pace for a call whose floor is Cost(LeastMessage) or more.
func NewPace(c *Call) *Pace { return &Pace{call: c, size: firstMessage} }

// Wait waits until the message sent last was taken.
func (p *Pace) Wait(ctx context.Context) error {
	if p.last == nil {
		return nil
	}
	select {
	case <-p.last.Taken():
	default:
		select {
		case <-p.last.Taken():
		case <-ctx.Done():
			return errEnded(ctx.Err())
		}
		switch took := time.Since(p.sent); {
		case took > late:
			p.size = LeastMessage / 2
		case took > prompt:
			p.size /= 2
		}
	}
	p.size = min(max(2*p.size, LeastMessage), MostMessage)
	p.last = nil
	return nil
}

// Try returns room for the next message without waiting, nil if there is none
// before the last was taken. atTail: it will probably be small, or long in coming.
func (p *Pace) Try(atTail bool) *Room {
	want := p.size
	if atTail {
		want = LeastMessage
	}
	return p.call.Try(Cost(want), Cost(LeastMessage))
}

// Next is Try, which waits for the last message.
func (p *Pace) Next(ctx context.Context, atTail bool) (*Room, error) {
	if r := p.Try(atTail); r != nil {
		return r, nil
	}
	if err := p.Wait(ctx); err != nil {
		return nil, err
	}
	return p.call.Take(ctx, Cost(LeastMessage), Cost(LeastMessage))
}

// Send sends a message in its room; Wait MUST have returned before.
func (p *Pace) Send(srv ServerStream, msg protobuf.Message, room *Room) error {
	p.sent, p.last = time.Now(), room
	return Send(srv, msg, room)
}
