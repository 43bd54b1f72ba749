package client

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// ReadConfig holds a bounded read's settings. Zero values take the defaults.
type ReadConfig struct {
	// Request says where to start and when to end. WaitMs is not for it: it never
	// goes beyond the tail as of the first page.
	Request *novapb.ReadRequest
	// Patience is how long a page is asked for again while nothing answers,
	// default 2 min.
	Patience time.Duration
	// PageTimeout limits one request, default 30 s.
	PageTimeout time.Duration
}

const defaultPageTimeout = 30 * time.Second

// Read calls each with every page of records from the start position to the
// tail as of the first page, or to a limit. It asks again for what fails in
// passing and checks that pages follow each other. Records that were trimmed
// while it read are an error with reason TRIMMED. Records of a page share memory:
// who keeps one of them for long copies it.
func (c *Client) Read(ctx context.Context, cfg ReadConfig, each func(*novapb.ReadResponse) error) error {
	if cfg.Patience <= 0 {
		cfg.Patience = defaultPatience
	}
	if cfg.PageTimeout <= 0 {
		cfg.PageTimeout = defaultPageTimeout
	}
	req := proto.CloneOf(cfg.Request)
	req.Chunks = true
	var check continuity
	if at, ok := req.GetStart().(*novapb.ReadRequest_Seq); ok && !req.GetClamp() {
		check.expect(at.Seq)
	}
	var end *uint64
	ahead := c.ask(ctx, cfg, req)
	defer func() { ahead.cancel(); <-ahead.done }()
	for {
		<-ahead.done
		page, err := ahead.page, ahead.err
		if err != nil {
			return err
		}
		if end == nil {
			end = &page.Tail
		}
		records := page.GetRecords()
		n, err := check.follow(run{records: records, before: page.GetHashBefore(), after: page.GetHashAfter(), next: page.GetNextSeq()}, false, req)
		if err != nil {
			return err
		}
		// A stream that grew while it was read ends where it did at the start.
		if n = min(n, before(records, *end)); n < len(records) {
			if n == 0 {
				return nil
			}
			return each(&novapb.ReadResponse{
				Records: records[:n], NextSeq: records[n].GetSeq(), Tail: page.GetTail(), FirstSeq: page.GetFirstSeq(),
				StreamId: page.GetStreamId(), HashBefore: page.GetHashBefore(), LimitReached: true,
			})
		}
		if page.GetLimitReached() || page.GetNextSeq() >= *end {
			return each(page)
		}
		if at, ok := req.GetStart().(*novapb.ReadRequest_Seq); ok && page.GetNextSeq() <= at.Seq && !req.GetClamp() {
			return fmt.Errorf("an empty page at %d, the tail is %d: %w", at.Seq, *end, ErrBroken)
		}
		req.StreamId, req.Clamp = page.GetStreamId(), false
		req.Start = &novapb.ReadRequest_Seq{Seq: page.GetNextSeq()}
		ahead.cancel()
		ahead = c.ask(ctx, cfg, req)
		if err := each(page); err != nil {
			return err
		}
	}
}

// asked is a page that was asked for, so that it comes while the one before it is
// worked on. page and err are valid once done is closed.
type asked struct {
	cancel context.CancelFunc
	done   chan struct{}
	page   *novapb.ReadResponse
	err    error
}

// ask asks for a page; req must not change until the answer is there.
func (c *Client) ask(ctx context.Context, cfg ReadConfig, req *novapb.ReadRequest) *asked {
	a := &asked{done: make(chan struct{})}
	ctx, a.cancel = context.WithCancel(ctx)
	go func() {
		defer close(a.done)
		a.page, a.err = c.page(ctx, cfg, req)
	}()
	return a
}

// page asks for one page until it is answered for good.
func (c *Client) page(ctx context.Context, cfg ReadConfig, req *novapb.ReadRequest) (*novapb.ReadResponse, error) {
	since := time.Now()
	for try := 0; ; try++ {
		call, cancel := context.WithTimeout(ctx, min(cfg.PageTimeout, cfg.Patience))
		page, err := c.Reads.Read(call, req)
		cancel()
		switch {
		case err == nil:
			if err = unpack(page); err == nil {
				return page, nil
			}
			if !req.GetChunks() {
				return nil, err
			}
			// A newer server's, perhaps, or damaged: the reader is to decode them, and to
			// judge.
			req = proto.CloneOf(req)
			req.Chunks = false
			continue
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !temporary(err):
			return nil, err
		case time.Since(since) >= cfg.Patience:
			return nil, fmt.Errorf("no answer for %s: %w", cfg.Patience, err)
		}
		if !pause(ctx, try, err) {
			return nil, ctx.Err()
		}
	}
}

// unpackedBytes is the most that the chunks of a page decode to.
const unpackedBytes = 8 << 20

// unpack makes records of the chunks of a page, if it has some. Each is verified
// by its checksums; their content hashes are the page's.
func unpack(page *novapb.ReadResponse) error {
	left := uint64(unpackedBytes)
	for _, c := range page.GetChunks() {
		h, records, err := chunk.Join(c.GetHeader(), c.GetPayload())
		if err != nil {
			return fmt.Errorf("a page's chunk: %w: %w", err, ErrBroken)
		}
		if h.StreamID.String() != page.GetStreamId() || uint64(h.RawLength) > left {
			return fmt.Errorf("a page's chunk of %d bytes of stream %s: %w", h.RawLength, h.StreamID, ErrBroken)
		}
		left -= uint64(h.RawLength)
		page.Records = append(slices.Grow(page.Records, len(records)), messages(records)...)
	}
	page.Chunks = nil
	return nil
}

// messages makes messages of records, with a few allocations for all of them.
func messages(records []stream.Record) []*novapb.Record {
	slab, out := make([]novapb.Record, len(records)), make([]*novapb.Record, len(records))
	for i := range records {
		r, m := &records[i], &slab[i]
		m.Seq, m.Timestamp, m.Body = uint64(r.Seq), int64(r.Timestamp), r.Body
		if len(r.Headers) > 0 {
			m.Headers = make([]*novapb.Header, len(r.Headers))
			for k := range r.Headers {
				m.Headers[k] = &novapb.Header{Name: r.Headers[k].Name, Value: r.Headers[k].Value}
			}
		}
		out[i] = m
	}
	return out
}

// before returns how many of the records are before end.
func before(records []*novapb.Record, end uint64) int {
	for i, r := range records {
		if r.GetSeq() >= end {
			return i
		}
	}
	return len(records)
}
