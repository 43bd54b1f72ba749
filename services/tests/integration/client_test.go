package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// ownBucket is the bucket of a test that has a constellation to itself.
const ownBucket = "tests"

// bucket is that of the running test: tests of a shared constellation have one
// each.
var bucket = ownBucket

// client is the public API of one deployment.
type client struct {
	conn    *grpc.ClientConn
	buckets novapb.BucketServiceClient
	streams novapb.StreamServiceClient
	appends novapb.AppendServiceClient
	reads   novapb.ReadServiceClient
	admin   novapb.AdminServiceClient
}

// dial connects and sees that the bucket is there.
func dial(t *testing.T, address string) *client {
	t.Helper()
	c := clientOf(connect(t, address))
	if _, err := c.buckets.CreateBucket(t.Context(), &novapb.CreateBucketRequest{Bucket: bucket}); err != nil && !reason.Is(err, reason.BucketExists) {
		t.Fatalf("create bucket: %v", err)
	}
	return c
}

func clientOf(conn *grpc.ClientConn) *client {
	return &client{
		conn: conn, buckets: novapb.NewBucketServiceClient(conn), streams: novapb.NewStreamServiceClient(conn),
		appends: novapb.NewAppendServiceClient(conn), reads: novapb.NewReadServiceClient(conn), admin: novapb.NewAdminServiceClient(conn),
	}
}

// create creates a stream and returns its id.
func (c *client) create(t *testing.T, name string, cfg *novapb.StreamConfig) string {
	t.Helper()
	res, err := c.streams.CreateStream(t.Context(), &novapb.CreateStreamRequest{Bucket: bucket, Stream: name, Config: cfg})
	if err != nil {
		t.Fatalf("create stream %s: %v", name, err)
	}
	return res.GetStream().GetStreamId()
}

func records(bodies ...string) []*novapb.AppendRecord {
	out := make([]*novapb.AppendRecord, len(bodies))
	for i, b := range bodies {
		out[i] = &novapb.AppendRecord{Body: []byte(b)}
	}
	return out
}

func request(name string, bodies ...string) *novapb.AppendRequest {
	return &novapb.AppendRequest{Bucket: bucket, Stream: name, Records: records(bodies...)}
}

// append appends, must succeed, and checks where it landed.
func (c *client) append(t *testing.T, first uint64, name string, bodies ...string) *novapb.AppendAck {
	t.Helper()
	res, err := c.appends.Append(t.Context(), request(name, bodies...))
	if err != nil {
		t.Fatalf("append to %s: %v", name, err)
	}
	a := res.GetAck()
	if a.GetFirstSeq() != first || a.GetNextSeq() != first+uint64(len(bodies)) || a.GetTail() < a.GetNextSeq() {
		t.Fatalf("append to %s at %d: ack %v", name, first, a)
	}
	return a
}

// appendErr appends and returns the error.
func (c *client) appendErr(ctx context.Context, req *novapb.AppendRequest) error {
	_, err := c.appends.Append(ctx, req)
	return err
}

// readAll reads from seq to the tail, checking that numbers are contiguous,
// that time does not run backwards, and that content hashes join.
func (c *client) readAll(ctx context.Context, name string, seq uint64) ([]*novapb.Record, error) {
	var out []*novapb.Record
	var hash uint64
	for page := 0; ; page++ {
		res, err := c.reads.Read(ctx, &novapb.ReadRequest{Bucket: bucket, Stream: name, Start: &novapb.ReadRequest_Seq{Seq: seq}})
		if err != nil {
			return nil, fmt.Errorf("read %s from %d: %w", name, seq, err)
		}
		if len(res.GetRecords()) == 0 {
			if seq != res.GetTail() {
				return nil, fmt.Errorf("read %s from %d: no records, but the tail is %d", name, seq, res.GetTail())
			}
			return out, nil
		}
		if page > 0 && res.GetHashBefore() != hash {
			return nil, fmt.Errorf("read %s from %d: content hash %016x does not continue %016x", name, seq, res.GetHashBefore(), hash)
		}
		hash = res.GetHashAfter()
		for _, r := range res.GetRecords() {
			if r.GetSeq() != seq {
				return nil, fmt.Errorf("read %s: record %d where %d belongs", name, r.GetSeq(), seq)
			}
			if k := len(out); k > 0 && r.GetTimestamp() < out[k-1].GetTimestamp() {
				return nil, fmt.Errorf("read %s: record %d is older than the one before", name, seq)
			}
			out = append(out, r)
			seq++
		}
		if res.GetNextSeq() != seq {
			return nil, fmt.Errorf("read %s: next_seq %d after record %d", name, res.GetNextSeq(), seq-1)
		}
	}
}

// expect reads from seq to the tail and compares bodies.
func (c *client) expect(t *testing.T, name string, seq uint64, bodies ...string) {
	t.Helper()
	got, err := c.readAll(t.Context(), name, seq)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(bodies) {
		t.Fatalf("%s from %d: %d records, want %d", name, seq, len(got), len(bodies))
	}
	for i, r := range got {
		if !bytes.Equal(r.GetBody(), []byte(bodies[i])) {
			t.Fatalf("%s record %d: body %.40q, want %.40q", name, r.GetSeq(), r.GetBody(), bodies[i])
		}
	}
}

func (c *client) tail(t *testing.T, name string) *novapb.CheckTailResponse {
	t.Helper()
	res, err := c.reads.CheckTail(t.Context(), &novapb.CheckTailRequest{Bucket: bucket, Stream: name})
	if err != nil {
		t.Fatalf("check tail of %s: %v", name, err)
	}
	return res
}

// verify runs AdminService.Verify over everything, or over the test's own bucket
// if others share the constellation, and returns its findings.
func (c *client) verify(ctx context.Context) ([]string, error) {
	req := &novapb.VerifyRequest{All: true}
	if bucket != ownBucket {
		req = &novapb.VerifyRequest{Bucket: bucket}
	}
	v, err := c.admin.Verify(ctx, req)
	if err != nil {
		return nil, err
	}
	var findings []string
	done := map[string]bool{}
	for {
		res, err := v.Recv()
		if errors.Is(err, io.EOF) {
			for id, ok := range done {
				if !ok {
					findings = append(findings, "stream "+id+" was not verified to its end")
				}
			}
			return findings, nil
		}
		if err != nil {
			return nil, err
		}
		done[res.GetStreamId()] = res.GetDone()
		for _, f := range res.GetFindings() {
			findings = append(findings, fmt.Sprintf("%s: %s: %s", res.GetStream(), f.GetKind(), f.GetMessage()))
		}
	}
}

func (c *client) mustVerify(t *testing.T) {
	t.Helper()
	findings, err := c.verify(t.Context())
	if err != nil {
		t.Fatalf("verify: %v", err)
	}
	for _, f := range findings {
		t.Errorf("verify: %s", f)
	}
}

// wantErr checks a refusal: code, reason and, of appends, that it says that
// nothing was stored.
func wantErr(t *testing.T, err error, code codes.Code, r reason.Reason) {
	t.Helper()
	if status.Code(err) != code || reason.Of(err) != r {
		t.Fatalf("got %s %q (%v), want %s %q", status.Code(err), reason.Of(err), err, code, r)
	}
}

func wantRefused(t *testing.T, err error, code codes.Code, r reason.Reason) {
	t.Helper()
	wantErr(t, err, code, r)
	if o := reason.OutcomeOf(err); o != reason.NotCommitted {
		t.Fatalf("%v: outcome %q, want %q", err, o, reason.NotCommitted)
	}
}

func wantNumber(t *testing.T, err error, key string, want uint64) {
	t.Helper()
	if got, ok := reason.Number(err, key); !ok || got != want {
		t.Fatalf("%v: %s is %d, want %d", err, key, got, want)
	}
}

// within returns a context that ends soon enough to fail a test that hangs.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func ptr[T any](v T) *T { return &v }
