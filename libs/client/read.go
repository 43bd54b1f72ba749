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
		req, page, err := ahead.req, ahead.page, ahead.err
		if err != nil {
			return err
		}
		if end == nil {
			end = &page.Tail
		}
		// What follows is on its way while this page is worked on; not yet if it
		// depends on the page's records.
		early := !req.HasCount() && !req.HasBytes() && follows(req, page, *end)
		if early {
			ahead = c.ask(ctx, cfg, after(req, page))
		}
		if err := unpack(page); err != nil {
			// Of a newer version, perhaps, or damaged: the reader is to decode, and to
			// judge. What follows begins elsewhere then.
			if !req.GetChunks() {
				return err
			}
			if early {
				ahead.cancel()
				<-ahead.done
				early = false
			}
			req.Chunks = false
			if page, err = c.page(ctx, cfg, req); err == nil {
				err = unpack(page)
			}
			if err != nil {
				return err
			}
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
		if !follows(req, page, *end) {
			return fmt.Errorf("an empty page at %d, the tail is %d: %w", page.GetNextSeq(), *end, ErrBroken)
		}
		if !early {
			ahead = c.ask(ctx, cfg, after(req, page))
		}
		if err := each(page); err != nil {
			return err
		}
	}
}

// follows reports whether another page follows one that was asked for by req.
func follows(req *novapb.ReadRequest, page *novapb.ReadResponse, end uint64) bool {
	at, bySeq := req.GetStart().(*novapb.ReadRequest_Seq)
	empty := bySeq && page.GetNextSeq() <= at.Seq && !req.GetClamp()
	return !empty && !page.GetLimitReached() && page.GetNextSeq() < end
}

// after returns the request for the page that follows one.
func after(req *novapb.ReadRequest, page *novapb.ReadResponse) *novapb.ReadRequest {
	next := proto.CloneOf(req)
	next.StreamId, next.Clamp = page.GetStreamId(), false
	next.Start = &novapb.ReadRequest_Seq{Seq: page.GetNextSeq()}
	return next
}

// asked is a page that was asked for, so that it comes while the one before it is
// worked on. page and err are valid once done is closed, and req may be changed
// then.
type asked struct {
	req    *novapb.ReadRequest
	cancel context.CancelFunc
	done   chan struct{}
	page   *novapb.ReadResponse
	err    error
}

// ask asks for a page; req is its own from then on.
func (c *Client) ask(ctx context.Context, cfg ReadConfig, req *novapb.ReadRequest) *asked {
	a := &asked{req: req, done: make(chan struct{})}
	ctx, a.cancel = context.WithCancel(ctx)
	go func() {
		defer close(a.done)
		defer a.cancel()
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
			return page, nil
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
