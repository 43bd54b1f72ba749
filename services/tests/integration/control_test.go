package integration

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func (c *client) trim(t *testing.T, name string, seq uint64) *novapb.TrimResponse {
	t.Helper()
	res, err := c.appends.Trim(t.Context(), &novapb.TrimRequest{Bucket: bucket, Stream: name, Seq: seq})
	if err != nil {
		t.Fatalf("trim %s to %d: %v", name, seq, err)
	}
	return res
}

// A trim holds for every read that starts after its answer, for ever.
func TestTrim(t *testing.T) {
	eachShape(t, func(t *testing.T, d deployment, c *client) {
		c.create(t, "s", nil)
		c.append(t, 0, "s", "a", "b", "c")
		c.append(t, 3, "s", "d")
		// Within a chunk, then backwards.
		for _, seq := range []uint64{2, 1, 0} {
			if res := c.trim(t, "s", seq); res.GetFirstSeq() != 2 || res.GetTail() != 4 {
				t.Fatalf("trim to %d: %v", seq, res)
			}
		}
		for range 2 {
			c.expect(t, "s", 2, "c", "d")
			_, err := c.readAll(t.Context(), "s", 1)
			wantErr(t, err, codes.OutOfRange, reason.Trimmed)
			wantNumber(t, err, reason.KeyFirstSeq, 2)
			res, err := c.reads.Read(t.Context(), &novapb.ReadRequest{Bucket: bucket, Stream: "s"})
			if err != nil || res.GetRecords()[0].GetSeq() != 2 || res.GetFirstSeq() != 2 {
				t.Fatalf("read from the start: %v, %v", res, err)
			}
			res, err = c.reads.Read(t.Context(), &novapb.ReadRequest{Bucket: bucket, Stream: "s", Start: &novapb.ReadRequest_Seq{Seq: 0}, Clamp: true})
			if err != nil || res.GetRecords()[0].GetSeq() != 2 {
				t.Fatalf("read from 0, clamped: %v, %v", res, err)
			}
			d.restart(t)
			c = dial(t, d.address())
		}
		_, err := c.appends.Trim(t.Context(), &novapb.TrimRequest{Bucket: bucket, Stream: "s", Seq: 5})
		wantErr(t, err, codes.OutOfRange, reason.BeyondTail)
		wantNumber(t, err, reason.KeyTail, 4)
		if res := c.trim(t, "s", 4); res.GetFirstSeq() != 4 {
			t.Fatalf("trim to the tail: %v", res)
		}
		if tail := c.tail(t, "s"); tail.GetFirstSeq() != 4 || tail.GetTail() != 4 {
			t.Fatalf("tail of an empty stream: %v", tail)
		}
		c.append(t, 4, "s", "e")
		c.expect(t, "s", 4, "e")
		c.mustVerify(t)
	})
}

func TestSeal(t *testing.T) {
	eachShape(t, func(t *testing.T, d deployment, c *client) {
		c.create(t, "s", nil)
		c.append(t, 0, "s", "a", "b")
		_, err := c.appends.SealStream(t.Context(), &novapb.SealStreamRequest{Bucket: bucket, Stream: "s", MatchSeqPresence: &novapb.SealStreamRequest_MatchSeq{MatchSeq: uint64(1)}})
		wantErr(t, err, codes.FailedPrecondition, reason.SeqMismatch)
		wantNumber(t, err, reason.KeyTail, 2)
		for i := range 3 {
			if i == 2 {
				d.restart(t)
				c = dial(t, d.address())
			}
			res, err := c.appends.SealStream(t.Context(), &novapb.SealStreamRequest{Bucket: bucket, Stream: "s"})
			if err != nil || res.GetTail() != 2 {
				t.Fatalf("seal: %v, %v", res, err)
			}
			err = c.appendErr(t.Context(), request("s", "c"))
			wantRefused(t, err, codes.FailedPrecondition, reason.StreamSealed)
			wantNumber(t, err, reason.KeyTail, 2)
		}
		res, err := c.reads.Read(t.Context(), &novapb.ReadRequest{Bucket: bucket, Stream: "s"})
		if err != nil || len(res.GetRecords()) != 2 || !res.GetEndOfStream() {
			t.Fatalf("read: %v, %v", res, err)
		}
		if tail := c.tail(t, "s"); !tail.GetSealed() {
			t.Fatalf("tail: %v", tail)
		}
		got, err := c.streams.GetStream(t.Context(), &novapb.GetStreamRequest{Bucket: bucket, Stream: "s"})
		if err != nil || got.GetStream().GetState() != novapb.StreamState_STREAM_STATE_SEALED {
			t.Fatalf("get stream: %v, %v", got, err)
		}
		c.trim(t, "s", 1) // a sealed stream can still be trimmed
		c.expect(t, "s", 1, "b")
	})
}

// The last batch may seal the stream.
func TestSealWithTheLastBatch(t *testing.T) {
	eachShape(t, func(t *testing.T, d deployment, c *client) {
		c.create(t, "s", nil)
		req := request("s", "a", "last")
		req.Seal = true
		if err := c.appendErr(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		d.restart(t)
		c = dial(t, d.address())
		wantRefused(t, c.appendErr(t.Context(), request("s", "b")), codes.FailedPrecondition, reason.StreamSealed)
		c.expect(t, "s", 0, "a", "last")
	})
}

func TestFencingToken(t *testing.T) {
	eachShape(t, func(t *testing.T, d deployment, c *client) {
		c.create(t, "s", nil)
		set := func(token string, expect *string) error {
			_, err := c.appends.SetFencingToken(t.Context(), novapb.SetFencingTokenRequest_builder{Bucket: bucket, Stream: "s", Token: token, FencingToken: expect}.Build())
			return err
		}
		with := func(token *string, body string) error {
			req := request("s", body)
			if token != nil {
				req.SetFencingToken(*token)
			}
			return c.appendErr(t.Context(), req)
		}
		ok := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		fenced := func(err error) {
			t.Helper()
			wantRefused(t, err, codes.Aborted, reason.Fenced)
		}
		ok(with(ptr(""), "0"))
		fenced(with(ptr("one"), "no"))
		ok(set("one", ptr("")))
		ok(with(ptr("one"), "1"))
		ok(with(nil, "2")) // absent: not checked
		fenced(with(ptr(""), "no"))
		fenced(set("two", ptr("zero")))
		ok(set("two", ptr("one")))
		d.restart(t)
		c = dial(t, d.address())
		fenced(with(ptr("one"), "no"))
		ok(with(ptr("two"), "3"))
		_, err := c.appends.Trim(t.Context(), &novapb.TrimRequest{Bucket: bucket, Stream: "s", Seq: 1, FencingTokenPresence: &novapb.TrimRequest_FencingToken{FencingToken: "one"}})
		fenced(err)
		_, err = c.appends.SealStream(t.Context(), &novapb.SealStreamRequest{Bucket: bucket, Stream: "s", FencingTokenPresence: &novapb.SealStreamRequest_FencingToken{FencingToken: "one"}})
		fenced(err)
		ok(set("", nil))
		fenced(with(ptr("two"), "no"))
		ok(with(ptr(""), "4"))
		c.expect(t, "s", 0, "0", "1", "2", "3", "4")
	})
}
