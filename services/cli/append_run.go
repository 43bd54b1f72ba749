package cli

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Bounds of what is read ahead: runs of so many bytes (or one record), so many
// runs. With the session's window they bound the memory that append needs.
const (
	runBytes   = 128 << 10
	runsQueued = 4
)

// slabRecords is how many records share an allocation.
const slabRecords = 125

// run is records that were there without waiting. Lines that were buffered as a
// whole lie in its own memory, which is used again once all of the run is
// acknowledged.
type run struct {
	records []*novapb.AppendRecord
	size    int // of the records, client.AppendSize
	left    int // records not yet acknowledged; guarded by runs.mu

	text  []byte
	slabs [][]novapb.AppendRecord
	lines int // records of slabs in use
}

func (r *run) full() bool { return r.size >= runBytes || len(r.records) >= stream.MaxBatchRecords }

// fill reads records into an empty run: the first, and those that are there
// without waiting for more input. An error is why there are no more.
func (r *run) fill(s *source) error {
	for {
		rec, err := s.next()
		if err != nil {
			return err
		}
		r.records = append(r.records, rec)
		r.size += client.AppendSize(rec)
		if s.format == formatLines && len(r.text) == 0 {
			r.fillLines(s)
		}
		if r.full() || !s.ready() {
			return nil
		}
	}
}

// fillLines takes lines that are buffered, once in a run.
func (r *run) fillLines(s *source) {
	in, _ := s.in.Peek(s.in.Buffered()) // what is buffered can be peeked
	if r.text = r.text[:0]; cap(r.text) < min(len(in), runBytes) {
		r.text = make([]byte, 0, min(len(in), runBytes))
	}
	room, taken := r.text[:cap(r.text)], 0
	for !r.full() {
		n := bytes.IndexByte(in[taken:], '\n')
		if n < 0 || taken+n > len(room) {
			break
		}
		rec := r.record()
		rec.Body = room[taken : taken+n : taken+n] // who appends to it copies it
		r.records = append(r.records, rec)
		r.size += n
		taken += n + 1
		s.line++
	}
	r.text = room[:copy(room, in[:taken])]
	_, _ = s.in.Discard(taken) // it is buffered
}

// record returns a record in memory of the run, with no more than a body.
func (r *run) record() *novapb.AppendRecord {
	at, k := r.lines/slabRecords, r.lines%slabRecords
	if at == len(r.slabs) {
		r.slabs = append(r.slabs, make([]novapb.AppendRecord, slabRecords))
	}
	r.lines++
	return &r.slabs[at][k]
}

// part is what a batch holds of a run.
type part struct {
	run     *run
	records int
}

// runs hands out runs, and takes them back when all their records are
// acknowledged: then nobody looks at them any more.
type runs struct {
	mu   sync.Mutex
	sent [][]part // of the batches that are not acknowledged, in order
	free []*run   // at most as many as were ever in use at once
}

func (f *runs) get() *run {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.free); n > 0 {
		r := f.free[n-1]
		f.free = f.free[:n-1]
		return r
	}
	return &run{}
}

// sending notes a batch that is about to be handed to the session.
func (f *runs) sending(parts []part) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, parts)
}

// acknowledged takes the next batch as acknowledged.
func (f *runs) acknowledged(*novapb.AppendAck) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.sent[0] {
		if p.run.left -= p.records; p.run.left == 0 {
			r := p.run
			clear(r.records)
			r.records, r.size, r.text, r.lines = r.records[:0], 0, r.text[:0], 0
			f.free = append(f.free, r)
		}
	}
	f.sent[0] = nil
	f.sent = f.sent[1:]
}

// readSource sends the records of one source. What precedes a record that
// cannot be read is sent.
func (f *runs) readSource(s *source, send func(input) bool) error {
	for {
		r := f.get()
		err := r.fill(s)
		if r.left = len(r.records); r.left > 0 && !send(input{run: r}) {
			return nil
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
