package cli

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// append loads until ctx ends; what is under way then is waited for.
func (b *bench) append(ctx context.Context) error {
	return each(len(b.names), func(i int) error { return b.session(ctx, b.names[i], nil) })
}

// session appends batches until ctx ends. With sent, it tells there when each is
// handed over, before it is, and closes the stream behind the last one.
func (b *bench) session(ctx context.Context, name string, sent chan<- time.Time) error {
	outlives := context.WithoutCancel(ctx)
	handed := make(chan time.Time, b.window)
	s := b.client.OpenSession(outlives, client.SessionConfig{
		Bucket: b.bucket, Stream: name, Window: b.window,
		Acked: func(ack *novapb.AppendAck) {
			if ack.GetNextSeq() > ack.GetFirstSeq() { // not the empty one that closes
				b.meter.observe("ack", time.Since(<-handed))
				b.meter.count(b.batch, b.batch*b.size)
			}
		},
	})
	for {
		now := time.Now()
		// Once there is room for the time, there is for the batch.
		if !push(ctx, s, handed, now) || sent != nil && !push(ctx, s, sent, now) {
			break
		}
		if s.Send(outlives, b.records) != nil {
			break // Close has the reason
		}
	}
	closing, cancel := context.WithTimeout(outlives, callTimeout)
	defer cancel()
	if sent != nil {
		_ = s.SendSealing(closing, nil)
	}
	_, err := s.Close(closing)
	return err
}

// push puts a time in line; false: the load is over.
func push(ctx context.Context, s *client.Session, line chan<- time.Time, at time.Time) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case line <- at:
		return true
	case <-ctx.Done():
	case <-s.Done():
	}
	return false
}

// maxUndelivered is how many batches a subscriber may be behind.
const maxUndelivered = 4096

// endToEnd is append with a subscriber per stream.
func (b *bench) endToEnd(ctx context.Context) error {
	return each(len(b.names), func(i int) error { return b.delivered(ctx, b.names[i]) })
}

func (b *bench) delivered(ctx context.Context, name string) error {
	ctx, endLoad := context.WithCancel(ctx)
	defer endLoad()
	// The subscriber outlives the load: it goes on to the end of the stream.
	receiving, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	sent, ended := make(chan time.Time, maxUndelivered), make(chan struct{})
	var received error // valid once ended is closed
	go func() {
		defer close(ended)
		defer endLoad()
		received = b.receive(receiving, name, sent)
	}()
	err := b.session(ctx, name, sent)
	if err != nil {
		hangUp()
	}
	<-ended
	if err != nil {
		return err // what the subscriber says follows from it
	}
	return received
}

// receive subscribes to a stream until its end. Each batch's time is in sent
// before the batch can arrive.
func (b *bench) receive(ctx context.Context, name string, sent <-chan time.Time) error {
	sub := b.client.Subscribe(ctx, client.SubscribeConfig{Request: &novapb.SubscribeRequest{
		Bucket: b.bucket, Stream: name, Start: &novapb.SubscribeRequest_Seq{Seq: 0},
	}})
	defer sub.Close()
	for due := uint64(b.batch); ; {
		msg, err := sub.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for ; due <= msg.GetNextSeq(); due += uint64(b.batch) {
			b.meter.observe("delivery", time.Since(<-sent))
		}
	}
}
