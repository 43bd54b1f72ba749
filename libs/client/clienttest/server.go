// Package clienttest holds an in-memory server of nova.v1 for the tests of its
// clients. Numbers, content hashes, trims, seals, fencing tokens and repeated
// producer batches behave as in a constellation; on top of that it fails where
// a test wants it to.
package clienttest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/libs/validate"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Step is a point at which a test may make a call fail.
type Step string

// The steps.
const (
	Opening  Step = "opening"  // a session was asked for
	Taking   Step = "taking"   // a batch came, nothing is stored
	Stored   Step = "stored"   // a batch is stored, no answer is made
	Acking   Step = "acking"   // an answer to a batch is about to leave
	Paging   Step = "paging"   // a page was asked for
	Messages Step = "messages" // a subscription's message is about to leave
	Calling  Step = "calling"  // any other call
)

// Cut is an error that ends a call as a broken connection does: without an
// answer to what was received.
var Cut = reason.New(codes.Unavailable, "", "cut by the test")

// Server is a nova.v1 server in memory.
type Server struct {
	novapb.UnimplementedAdminServiceServer

	mu      sync.Mutex
	fault   func(Step) error
	buckets map[string]*novapb.Bucket
	streams map[string]*state // by BUCKET/STREAM
	changed chan struct{}     // closed and replaced at every change
	now     func() time.Time
	nodes   []*novapb.Node
	shards  []*novapb.ShardInfo

	// Findings are what Verify reports.
	Findings []*novapb.VerifyFinding
	// Background is what GetBackground returns.
	Background *novapb.GetBackgroundResponse
	// DeadLetters are what was set aside.
	DeadLetters []*novapb.DeadLetter
	// Opened counts the append sessions that were opened.
	Opened int
	// Duplicates counts the batches that came again.
	Duplicates int
	// MaxPage limits the records of a page and of a subscription's message; 0
	// leaves it to the limits of a message.
	MaxPage int
	// Chunks, if set, makes pages of chunks where they are asked for, and may change
	// each of them.
	Chunks func(*novapb.Chunk)
	// Authorization is the header of the latest call.
	Authorization string
}

type state struct {
	info      *novapb.Stream
	records   []*novapb.Record
	hashes    []stream.Hash // after each record
	trim      uint64
	token     string
	sealed    bool
	producers head.Producers
}

// New returns a server without buckets.
func New() *Server {
	return &Server{
		buckets: map[string]*novapb.Bucket{}, streams: map[string]*state{}, changed: make(chan struct{}), now: time.Now,
		nodes:  []*novapb.Node{{NodeId: "n1", Service: "sequencer", Address: "127.0.0.1:1"}},
		shards: []*novapb.ShardInfo{{Shard: 1, Epoch: 7, State: "serving", Leader: "127.0.0.1:1", ChainIds: []string{"c"}}},
	}
}

// Serve serves on a free port of loopback until the test ends, and returns its
// address.
func (s *Server) Serve(t testing.TB) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	return s.ServeOn(t, l)
}

// ServeOn is Serve on a listener of the caller's.
func (s *Server) ServeOn(t testing.TB, l net.Listener) string {
	const most = 8 << 20
	g := grpc.NewServer(grpc.MaxRecvMsgSize(most))
	s.Register(g)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	return l.Addr().String()
}

// Register registers every service.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	novapb.RegisterBucketServiceServer(r, bucketService{s: s})
	novapb.RegisterStreamServiceServer(r, streamService{s: s})
	novapb.RegisterAppendServiceServer(r, appendService{s: s})
	novapb.RegisterReadServiceServer(r, readService{s: s})
	novapb.RegisterAdminServiceServer(r, s)
}

// SetFault has f asked at every step, from several goroutines. What it returns
// fails the call; at Taking and Stored also in a session's own way, as a
// failure of the batch, unless it is Cut.
func (s *Server) SetFault(f func(Step) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

func (s *Server) at(step Step) error {
	s.mu.Lock()
	f := s.fault
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(step)
}

// Create makes a bucket and a stream of default settings and returns the
// stream's id.
func (s *Server) Create(bucket, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buckets[bucket] == nil {
		s.buckets[bucket] = &novapb.Bucket{Name: bucket, State: novapb.BucketState_BUCKET_STATE_ACTIVE, CreatedAt: s.now().UnixMilli()}
	}
	st := &state{info: &novapb.Stream{
		Bucket: bucket, Name: name, StreamId: stream.NewID().String(), State: novapb.StreamState_STREAM_STATE_ACTIVE, CreatedAt: s.now().UnixMilli(), Shard: 1,
		Config: &novapb.StreamConfig{Profile: novapb.StorageProfile_STORAGE_PROFILE_STANDARD, Timestamping: novapb.TimestampingMode_TIMESTAMPING_MODE_CLIENT_PREFER},
	}}
	s.streams[bucket+"/"+name] = st
	return st.info.GetStreamId()
}

// Delete deletes a stream.
func (s *Server) Delete(bucket, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, bucket+"/"+name)
	s.notifyLocked()
}

// Records returns a stream's records, also trimmed ones.
func (s *Server) Records(bucket, name string) []*novapb.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.streams[bucket+"/"+name]; st != nil {
		return slices.Clone(st.records)
	}
	return nil
}

// Trim trims a stream.
func (s *Server) Trim(bucket, name string, seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[bucket+"/"+name].trim = seq
	s.notifyLocked()
}

// Corrupt changes the body of a record and leaves the content hashes.
func (s *Server) Corrupt(bucket, name string, seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := proto.CloneOf(s.streams[bucket+"/"+name].records[seq])
	r.Body = append(r.Body, '!')
	s.streams[bucket+"/"+name].records[seq] = r
}

// Store appends bodies as another writer would.
func (s *Server) Store(bucket, name string, bodies ...string) {
	b := batch{}
	for _, body := range bodies {
		b.records = append(b.records, &novapb.AppendRecord{Body: []byte(body)})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.storeLocked(s.streams[bucket+"/"+name], b); err != nil {
		panic(err)
	}
}

func (s *Server) notifyLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// named is any request that names a stream.
type named interface {
	GetBucket() string
	GetStream() string
	GetStreamId() string
}

func (s *Server) find(ctx context.Context, r named) (*state, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heardLocked(ctx)
	return s.findLocked(r)
}

func (s *Server) findLocked(r named) (*state, error) {
	if s.buckets[r.GetBucket()] == nil {
		return nil, reason.New(codes.NotFound, reason.BucketNotFound, "bucket "+r.GetBucket()+" does not exist")
	}
	st := s.streams[r.GetBucket()+"/"+r.GetStream()]
	if st == nil || r.GetStreamId() != "" && r.GetStreamId() != st.info.GetStreamId() {
		return nil, reason.New(codes.NotFound, reason.StreamNotFound, "stream "+r.GetStream()+" does not exist")
	}
	return st, nil
}

func (st *state) tail() uint64 { return uint64(len(st.records)) }

func (st *state) hash(tail uint64) stream.Hash {
	if tail == 0 {
		return 0
	}
	return st.hashes[tail-1]
}

// batch is one append, of a session or not.
type batch struct {
	records  []*novapb.AppendRecord
	match    *uint64
	token    *string
	seal     bool
	producer stream.Producer
}

// storeLocked checks in the order that sequencers do: what was stored before
// comes first.
func (s *Server) storeLocked(st *state, b batch) (*novapb.AppendAck, error) {
	now := stream.Millis(s.now().UnixMilli())
	if b.producer.ID != "" {
		verdict, dup, expected := st.producers.Check(b.producer, now)
		switch verdict {
		case head.Accept:
		case head.Duplicate:
			s.Duplicates++
			return ackOf(st, dup, true), nil
		case head.Fenced:
			return nil, reason.New(codes.FailedPrecondition, reason.ProducerFenced, "a higher producer epoch was there", reason.KeyExpectedEpoch, reason.Text(expected))
		default:
			return nil, reason.New(codes.FailedPrecondition, reason.ProducerGap, fmt.Sprintf("batch_seq %d is not the next", b.producer.Batch), reason.KeyExpectedBatchSeq, reason.Text(expected))
		}
	}
	tail := st.tail()
	switch {
	case b.token != nil && *b.token != st.token:
		return nil, reason.New(codes.Aborted, reason.Fenced, "fencing_token is not the stream's token")
	case b.match != nil && *b.match != tail:
		return nil, reason.New(codes.FailedPrecondition, reason.SeqMismatch, fmt.Sprintf("match_seq is %d, the next number is %d", *b.match, tail), reason.KeyTail, reason.Text(tail))
	case st.sealed:
		return nil, reason.New(codes.FailedPrecondition, reason.StreamSealed, "the stream is sealed", reason.KeyTail, reason.Text(tail))
	}
	last, hash := stream.Millis(0), st.hash(tail)
	if tail > 0 {
		last = stream.Millis(st.records[tail-1].GetTimestamp())
	}
	out := head.Batch{Seq: b.producer.Batch, First: stream.Seq(tail), Next: stream.Seq(tail) + stream.Seq(len(b.records))}
	var scratch []byte
	for i, in := range b.records {
		ts := now
		if in.HasTimestamp() {
			ts = min(now, stream.Millis(in.GetTimestamp()))
		}
		last = max(last, ts)
		r := &novapb.Record{Seq: tail + uint64(i), Timestamp: int64(last), Headers: in.GetHeaders(), Body: in.GetBody()}
		rec := stream.Record{Seq: stream.Seq(r.GetSeq()), Timestamp: last, Body: r.GetBody()}
		for _, h := range r.GetHeaders() {
			rec.Headers = append(rec.Headers, stream.Header{Name: h.GetName(), Value: h.GetValue()})
		}
		hash, scratch = chunk.HashRecord(hash, &rec, scratch)
		st.records, st.hashes = append(st.records, r), append(st.hashes, hash)
		if i == 0 {
			out.FirstTimestamp = last
		}
	}
	out.LastTimestamp, out.Hash = last, hash
	st.sealed = b.seal
	if b.producer.ID != "" {
		st.producers.Record(b.producer, out, now)
	}
	s.notifyLocked()
	return ackOf(st, out, false), nil
}

func ackOf(st *state, b head.Batch, duplicate bool) *novapb.AppendAck {
	return &novapb.AppendAck{
		FirstSeq: uint64(b.First), NextSeq: uint64(b.Next), Tail: st.tail(), FirstTimestamp: int64(b.FirstTimestamp), LastTimestamp: int64(b.LastTimestamp),
		ContentHash: uint64(b.Hash), Duplicate: duplicate,
	}
}

// accept runs a batch through its two faults.
func (s *Server) accept(r named, b batch) (*novapb.AppendAck, error) {
	if err := s.at(Taking); err != nil {
		return nil, outcome(err, reason.NotCommitted)
	}
	s.mu.Lock()
	st, err := s.findLocked(r)
	var ack *novapb.AppendAck
	if err == nil {
		ack, err = s.storeLocked(st, b)
	}
	s.mu.Unlock()
	if err != nil {
		return nil, outcome(err, reason.NotCommitted)
	}
	if err := s.at(Stored); err != nil {
		return nil, outcome(err, reason.Unknown)
	}
	return ack, nil
}

func outcome(err error, o reason.Outcome) error {
	if err == Cut { //nolint:errorlint // told apart by identity
		return err
	}
	return reason.WithOutcome(err, o)
}

func check(m proto.Message) error { return validate.Request(m) }

func matching(names []string, prefix, after string, limit uint32) (page []string, more bool) {
	if limit == 0 {
		limit = validate.MaxListLimit
	}
	slices.Sort(names)
	for _, n := range names {
		if !strings.HasPrefix(n, prefix) || n <= after {
			continue
		}
		if uint32(len(page)) == limit {
			return page, true
		}
		page = append(page, n)
	}
	return page, false
}
