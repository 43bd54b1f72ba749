package reader

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// modelled is a stream whose history is made at random: appended to, settled,
// trimmed and rewritten, and read from everywhere.
type modelled struct {
	*world
	s       *led
	r       *rand.Rand
	records []stream.Record // every record ever
	hashes  []stream.Hash   // hashes[i] is the content hash before record i
}

func newModelled(t *testing.T, seed uint64) *modelled {
	m := &modelled{world: newWorld(t, Config{FetchAhead: 3}), r: rand.New(rand.NewPCG(seed, 1)), hashes: []stream.Hash{0}}
	m.svc.retry = time.Millisecond
	m.s = m.create("s")
	return m
}

// append commits chunks.
func (m *modelled) append() {
	for range 1 + m.r.IntN(6) {
		m.change(m.s, func() {
			in := chunk.Input{StreamID: m.s.id, BaseSeq: stream.Seq(m.s.tail), HashBefore: m.s.hash, Batches: make([]chunk.InputBatch, 1)}
			for range 1 + m.r.IntN(4) {
				m.s.time += int64(m.r.IntN(3)) // several records may have the same time
				seq := stream.Seq(len(m.records))
				body := fmt.Appendf(nil, "record %d ", seq)
				if m.r.IntN(40) == 0 {
					body = append(body, noise(m.r, 200<<10)...)
				}
				rec := stream.Record{Seq: seq, Timestamp: stream.Millis(m.s.time), Body: body}
				in.Batches[0].Records = append(in.Batches[0].Records, rec)
				m.records = append(m.records, rec)
				hash, _ := chunk.HashRecord(m.hashes[seq], &rec, nil)
				m.hashes = append(m.hashes, hash)
			}
			m.put(m.s, in)
		})
	}
}

func noise(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// unsettled returns how many chunks are not settled.
func (m *modelled) unsettled() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(m.s.pieces), func(p *sequencerpb.Piece) bool { return p.GetBaseSeq() < m.s.head.GetTail() }))
}

func (m *modelled) settling() settling {
	return settling{merge: m.r.IntN(2) == 0, others: m.r.IntN(3)}
}

// step changes the stream somehow.
func (m *modelled) step() {
	switch n := m.unsettled(); m.r.IntN(8) {
	case 0, 1:
		m.append()
	case 2, 3:
		if n > 0 {
			m.trim(m.s, 0, true) // what is settled continues where the head's trim is
			m.settle(m.s, 1+m.r.IntN(n), m.settling())
		}
	case 4:
		// So many that pages are needed.
		for m.r.IntN(50) > 0 {
			if m.unsettled() == 0 {
				m.append()
			}
			m.settle(m.s, 1, m.settling())
		}
	case 5:
		if m.s.head != nil {
			m.learn(m.s)
		}
	case 6:
		if refs := len(m.s.head.GetRefs()); refs > 1 && m.r.IntN(2) == 0 {
			m.rewrite(m.s, 2+m.r.IntN(refs-1), m.settling())
		}
	case 7:
		if m.s.tail > m.s.trim && m.r.IntN(3) == 0 {
			m.trim(m.s, m.s.trim+m.r.Uint64N(m.s.tail-m.s.trim+1), m.r.IntN(2) == 0)
		}
	}
}

// request is a read, and where it begins by the model.
func (m *modelled) request() (req *novapb.ReadRequest, first uint64, why reason.Reason) {
	req = &novapb.ReadRequest{Clamp: m.r.IntN(4) == 0}
	trim, tail := m.s.trim, m.s.tail
	switch m.r.IntN(4) {
	case 0:
		first = trim
	case 1:
		first = m.r.Uint64N(tail + 2)
		req.Start = atSeq(first)
		switch {
		case req.GetClamp():
			first = min(max(first, trim), tail)
		case first < trim:
			why = reason.Trimmed
		case first > tail:
			why = reason.BeyondTail
		}
	case 2:
		ts := m.r.Int64N(m.s.time-990) + 995
		req.Start = &novapb.ReadRequest_Timestamp{Timestamp: ts}
		for first = trim; first < tail && m.records[first].Timestamp < stream.Millis(ts); first++ {
		}
	case 3:
		offset := m.r.Uint64N(tail + 2)
		req.Start = &novapb.ReadRequest_TailOffset{TailOffset: offset}
		first = max(trim, tail-min(tail, offset))
	}
	if m.r.IntN(3) == 0 {
		req.SetCount(m.r.Uint64N(20))
	}
	req.Chunks = m.r.IntN(2) == 0
	return req, first, why
}

// check compares a page with the model.
func (m *modelled) check(t *testing.T, req *novapb.ReadRequest, res *novapb.ReadResponse, first uint64) {
	t.Helper()
	opened(t, res)
	n := uint64(len(res.GetRecords()))
	for i, r := range res.GetRecords() {
		want := m.records[first+uint64(i)]
		if r.GetSeq() != uint64(want.Seq) || r.GetTimestamp() != int64(want.Timestamp) || !bytes.Equal(r.GetBody(), want.Body) {
			t.Fatalf("%v: record %d is %d at %d: %.40q", req, want.Seq, r.GetSeq(), r.GetTimestamp(), r.GetBody())
		}
	}
	if res.GetNextSeq() != first+n || res.GetTail() < res.GetNextSeq() || res.GetTail() > m.s.tail {
		t.Fatalf("%v: %d records from %d, then next %d, tail %d of %d", req, n, first, res.GetNextSeq(), res.GetTail(), m.s.tail)
	}
	if n > 0 && (res.GetHashBefore() != uint64(m.hashes[first]) || res.GetHashAfter() != uint64(m.hashes[first+n])) {
		t.Fatalf("%v: hashes are not those of %d..%d", req, first, first+n)
	}
	if n == 0 && first < res.GetTail() && !(req.HasCount() && req.GetCount() == 0) {
		t.Fatalf("%v: nothing from %d of %d on", req, first, res.GetTail())
	}
	if req.HasCount() && n > req.GetCount() {
		t.Fatalf("%v: %d records", req, n)
	}
}

// everything reads all from the first retained record on.
func (m *modelled) everything(t *testing.T) {
	t.Helper()
	for at := m.s.trim; at < m.s.tail; {
		res, err := m.read(&novapb.ReadRequest{Start: atSeq(at), Chunks: m.r.IntN(2) == 0})
		if err != nil {
			t.Fatalf("read from %d of %d..%d: %v\n%s", at, m.s.trim, m.s.tail, err, m.log)
		}
		m.check(t, &novapb.ReadRequest{}, res, at)
		at = res.GetNextSeq()
	}
}

// Whatever was settled, rewritten and trimmed, a read from anywhere returns what
// was appended (I1, I2).
func TestReadsOfRandomHistoriesEqualTheModel(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := newModelled(t, seed)
			defer m.close()
			for range 60 {
				m.step()
				req, first, why := m.request()
				res, err := m.read(req)
				if why != "" {
					want(t, err, codes.OutOfRange, why)
					continue
				}
				if err != nil {
					t.Fatalf("%v: %v\n%s", req, err, m.log)
				}
				m.check(t, req, res, first)
			}
			m.everything(t)
		})
	}
}

// The same, while what is read is settled, rewritten, trimmed and deleted between
// any two calls of a read. What was trimmed in time may be refused; a seek by time
// finds what is retained (C12).
func TestReadsThatRaceWithSettlingAndTrimming(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := newModelled(t, seed)
			defer m.close()
			var in, at atomic.Int64 // calls of this read, and the one at which it happens
			happens := func() {
				if in.Add(1) == at.Load() {
					for range 3 {
						m.step()
					}
				}
			}
			for range 60 {
				m.step()
				m.onHead, m.before = nil, nil
				m.objects.Clear()
				req, first, why := m.request()
				if why != "" {
					continue
				}
				trim := m.s.trim
				in.Store(0)
				at.Store(1 + m.r.Int64N(8))
				m.before, m.onHead = func(*sequencerpb.FetchRequest) { happens() }, happens
				var once atomic.Bool
				m.objects.Script(fault.Rule{Op: fault.GetRange, Hook: func(context.Context, fault.Op, string) error {
					// Reads beside each other must not change the stream at once.
					if in.Add(1) == at.Load() && once.CompareAndSwap(false, true) {
						m.trim(m.s, m.s.trim+(m.s.tail-m.s.trim)/2, true)
					}
					return nil
				}})
				res, err := m.read(req)
				m.objects.Clear()
				_, bySeq := req.GetStart().(*novapb.ReadRequest_Seq)
				if err != nil && bySeq && !req.GetClamp() && first < m.s.trim {
					want(t, err, codes.OutOfRange, reason.Trimmed)
					continue
				}
				if err != nil {
					t.Fatalf("%v, trim %d then %d: %v\n%s", req, trim, m.s.trim, err, m.log)
				}
				opened(t, res)
				// What was trimmed meanwhile may be passed over by all but a number, and
				// the offset counts from a tail that moves.
				if n := res.GetRecords(); len(n) > 0 && first != n[0].GetSeq() && !(bySeq && !req.GetClamp()) {
					if n[0].GetSeq() < first || n[0].GetSeq() > max(m.s.trim, m.s.tail) {
						t.Fatalf("%v begins at %d, not %d", req, n[0].GetSeq(), first)
					}
					first = n[0].GetSeq()
				} else if len(n) == 0 {
					first = res.GetNextSeq()
				}
				m.check(t, req, res, first)
			}
		})
	}
}
