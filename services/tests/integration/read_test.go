package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func TestReadPositionsAndLimits(t *testing.T) {
	eachShape(t, func(t *testing.T, d deployment, c *client) {
		c.create(t, "s", nil)
		// Ten records at 1000, 1010, ..., two to a chunk.
		for i := 0; i < 10; i += 2 {
			req := request("s", fmt.Sprint("body", i), fmt.Sprint("body", i+1))
			req.Records[0].SetTimestamp(int64(1000 + 10*i))
			req.Records[1].SetTimestamp(int64(1010 + 10*i))
			if err := c.appendErr(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		seq := func(n uint64) *novapb.ReadRequest {
			return &novapb.ReadRequest{Start: &novapb.ReadRequest_Seq{Seq: n}}
		}
		with := func(r *novapb.ReadRequest, change func(*novapb.ReadRequest)) *novapb.ReadRequest {
			change(r)
			return r
		}
		at := func(ts int64) *novapb.ReadRequest {
			return &novapb.ReadRequest{Start: &novapb.ReadRequest_Timestamp{Timestamp: ts}}
		}
		last := func(n uint64) *novapb.ReadRequest {
			return &novapb.ReadRequest{Start: &novapb.ReadRequest_TailOffset{TailOffset: n}}
		}
		cases := []struct {
			name        string
			req         *novapb.ReadRequest
			first, next uint64
			limit       bool
		}{
			{"from the start", &novapb.ReadRequest{}, 0, 10, false},
			{"from a number", seq(3), 3, 10, false},
			{"at the tail", seq(10), 10, 10, false},
			{"beyond, clamped", with(seq(99), func(r *novapb.ReadRequest) { r.Clamp = true }), 10, 10, false},
			{"before all times", at(0), 0, 10, false},
			{"at a time", at(1030), 3, 10, false},
			{"between times", at(1031), 4, 10, false},
			{"after all times", at(1091), 10, 10, false},
			{"before the tail", last(3), 7, 10, false},
			{"tail offset 0", last(0), 10, 10, false},
			{"tail offset beyond the first", last(11), 0, 10, false},
			{"count", with(seq(1), func(r *novapb.ReadRequest) { r.SetCount(4) }), 1, 5, true},
			{"count 0", with(seq(1), func(r *novapb.ReadRequest) { r.SetCount(0) }), 1, 1, true},
			{"bytes", with(seq(1), func(r *novapb.ReadRequest) { r.SetBytes(14) }), 1, 3, true},
			{"bytes under one record", with(seq(1), func(r *novapb.ReadRequest) { r.SetBytes(1) }), 1, 2, true},
			{"bytes 0", with(seq(1), func(r *novapb.ReadRequest) { r.SetBytes(0) }), 1, 1, true},
			{"until", with(seq(1), func(r *novapb.ReadRequest) { r.SetUntil(1050) }), 1, 5, true},
			{"until before the start", with(seq(5), func(r *novapb.ReadRequest) { r.SetUntil(1050) }), 5, 5, true},
			{"from a time until a time", with(at(1015), func(r *novapb.ReadRequest) { r.SetUntil(1041) }), 2, 5, true},
		}
		for range 2 {
			for _, tc := range cases {
				tc.req.Bucket, tc.req.Stream = bucket, "s"
				res, err := c.reads.Read(t.Context(), tc.req)
				if err != nil {
					t.Errorf("%s: %v", tc.name, err)
					continue
				}
				if got := uint64(len(res.GetRecords())); res.GetNextSeq() != tc.next || got != tc.next-tc.first || res.GetLimitReached() != tc.limit || res.GetTail() != 10 {
					t.Errorf("%s: %d records, next %d, tail %d, limit reached %v; want %d..%d, %v", tc.name, got, res.GetNextSeq(), res.GetTail(), res.GetLimitReached(), tc.first, tc.next, tc.limit)
					continue
				}
				for i, r := range res.GetRecords() {
					n := tc.first + uint64(i)
					if r.GetSeq() != n || string(r.GetBody()) != fmt.Sprint("body", n) || r.GetTimestamp() != int64(1000+10*n) {
						t.Errorf("%s: record %d is %v", tc.name, n, r)
					}
				}
			}
			_, err := c.readAll(t.Context(), "s", 11)
			wantErr(t, err, codes.OutOfRange, reason.BeyondTail)
			wantNumber(t, err, reason.KeyTail, 10)
			d.restart(t)
			c = dial(t, d.address())
		}
	})
}

// A page is bounded, and pages join.
func TestPages(t *testing.T) {
	eachShape(t, func(t *testing.T, _ deployment, c *client) {
		c.create(t, "s", nil)
		var want []string
		for i := range 12 {
			body := strings.Repeat(string(rune('a'+i)), 900<<10)
			want = append(want, body)
			c.append(t, uint64(i), "s", body)
		}
		c.expect(t, "s", 0, want...)
		res, err := c.reads.Read(t.Context(), &novapb.ReadRequest{Bucket: bucket, Stream: "s"})
		if err != nil || len(res.GetRecords()) == 0 || len(res.GetRecords()) > 3 || res.GetLimitReached() {
			t.Fatalf("%d records, %v", len(res.GetRecords()), err)
		}
	})
}

func TestReadWaitsAtTheTail(t *testing.T) {
	eachShape(t, func(t *testing.T, _ deployment, c *client) {
		c.create(t, "s", nil)
		read := func(ms uint32) (*novapb.ReadResponse, error) {
			return c.reads.Read(within(t, 20*time.Second), &novapb.ReadRequest{Bucket: bucket, Stream: "s", Start: &novapb.ReadRequest_Seq{Seq: 0}, WaitMs: ms})
		}
		began := time.Now()
		res, err := read(200)
		if err != nil || len(res.GetRecords()) != 0 || time.Since(began) < 200*time.Millisecond {
			t.Fatalf("nothing came: %v, %v after %v", res, err, time.Since(began))
		}
		answered := make(chan error, 1)
		go func() {
			res, err := read(15000)
			if err == nil && (len(res.GetRecords()) != 1 || string(res.GetRecords()[0].GetBody()) != "a") {
				err = fmt.Errorf("page %v", res)
			}
			answered <- err
		}()
		select {
		case err := <-answered:
			t.Fatalf("answered before there was a record: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		began = time.Now()
		c.append(t, 0, "s", "a")
		if err := <-answered; err != nil || time.Since(began) > 10*time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
	})
}

func TestTimestamps(t *testing.T) {
	eachShape(t, func(t *testing.T, d deployment, c *client) {
		at := func(name string, ts ...int64) error {
			req := &novapb.AppendRequest{Bucket: bucket, Stream: name}
			for _, v := range ts {
				r := &novapb.AppendRecord{Body: []byte("x")}
				if v >= 0 {
					r.SetTimestamp(v)
				}
				req.Records = append(req.Records, r)
			}
			return c.appendErr(t.Context(), req)
		}
		stamps := func(name string) []int64 {
			got, err := c.readAll(t.Context(), name, 0)
			if err != nil {
				t.Fatal(err)
			}
			var out []int64
			for _, r := range got {
				out = append(out, r.GetTimestamp())
			}
			return out
		}
		mode := func(m novapb.TimestampingMode, uncapped bool) *novapb.StreamConfig {
			return &novapb.StreamConfig{Timestamping: m, UncappedTimestampsPresence: &novapb.StreamConfig_UncappedTimestamps{UncappedTimestamps: uncapped}}
		}
		began := time.Now().UnixMilli()
		future := began + 3600_000

		c.create(t, "prefer", nil)
		if err := at("prefer", 500, 400, 600); err != nil {
			t.Fatal(err)
		}
		d.restart(t)
		c = dial(t, d.address())
		if err := at("prefer", 100, -1, future, 700); err != nil {
			t.Fatal(err)
		}
		now := time.Now().UnixMilli()
		got := stamps("prefer")
		for i, want := range []int64{500, 500, 600, 600} {
			if got[i] != want {
				t.Fatalf("client_prefer: %v", got)
			}
		}
		for _, ts := range got[4:] {
			if ts < began || ts > now {
				t.Fatalf("client_prefer: %v, appended between %d and %d", got, began, now)
			}
		}

		c.create(t, "require", mode(novapb.TimestampingMode_TIMESTAMPING_MODE_CLIENT_REQUIRE, false))
		wantRefused(t, at("require", 5, -1), codes.InvalidArgument, "")
		if err := at("require", 5); err != nil || c.tail(t, "require").GetTail() != 1 {
			t.Fatalf("client_require: %v", err)
		}

		c.create(t, "uncapped", mode(novapb.TimestampingMode_TIMESTAMPING_MODE_CLIENT_PREFER, true))
		if err := at("uncapped", future, -1); err != nil {
			t.Fatal(err)
		}
		if got := stamps("uncapped"); got[0] != future || got[1] != future {
			t.Fatalf("uncapped: %v", got)
		}

		c.create(t, "arrival", mode(novapb.TimestampingMode_TIMESTAMPING_MODE_ARRIVAL, false))
		if err := at("arrival", 5); err != nil {
			t.Fatal(err)
		}
		if got := stamps("arrival"); got[0] < began {
			t.Fatalf("arrival: %v", got)
		}
	})
}

func TestCreateStreamOnAppend(t *testing.T) {
	eachShape(t, func(t *testing.T, d deployment, c *client) {
		wantRefused(t, c.appendErr(t.Context(), request("s", "a")), codes.NotFound, reason.StreamNotFound)
		auto := bucket + "-auto"
		if _, err := c.buckets.CreateBucket(t.Context(), &novapb.CreateBucketRequest{Bucket: auto, Config: &novapb.BucketConfig{
			CreateStreamOnAppendPresence: &novapb.BucketConfig_CreateStreamOnAppend{CreateStreamOnAppend: true}, DefaultStreamConfig: &novapb.StreamConfig{Timestamping: novapb.TimestampingMode_TIMESTAMPING_MODE_CLIENT_REQUIRE},
		}}); err != nil {
			t.Fatal(err)
		}
		const racers = 20
		errs := make(chan error, racers)
		for range racers {
			go func() {
				_, err := c.appends.Append(t.Context(), &novapb.AppendRequest{Bucket: auto, Stream: "s", Records: []*novapb.AppendRecord{{TimestampPresence: &novapb.AppendRecord_Timestamp{Timestamp: int64(1)}}}})
				errs <- err
			}()
		}
		for range racers {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
		res, err := c.reads.CheckTail(t.Context(), &novapb.CheckTailRequest{Bucket: auto, Stream: "s"})
		if err != nil || res.GetTail() != racers {
			t.Fatalf("%v, %v", res, err)
		}
		_, err = c.reads.CheckTail(t.Context(), &novapb.CheckTailRequest{Bucket: auto, Stream: "other"})
		wantErr(t, err, codes.NotFound, reason.StreamNotFound)
		_, err = c.appends.Append(t.Context(), &novapb.AppendRequest{Bucket: auto, Stream: "s", Records: records("no time")})
		wantRefused(t, err, codes.InvalidArgument, "")
		ses, err := c.appends.AppendSession(within(t, 10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if err := ses.Send(&novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Open{Open: &novapb.AppendSessionOpen{Bucket: auto, Stream: "by session"}}}); err != nil {
			t.Fatal(err)
		}
		if opened, err := ses.Recv(); err != nil || opened.GetOpened().GetTail() != 0 {
			t.Fatalf("%v, %v", opened, err)
		}
	})
}
