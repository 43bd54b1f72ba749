package sequencer

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Whatever is fetched from below what is settled comes without pieces and at once;
// what is fetched by time is looked for there first (I2).
func TestFetchBelowWhatIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{SettledEvery: time.Hour})
		d := w.stream(&novapb.StreamConfig{Timestamping: novapb.TimestampingMode_TIMESTAMPING_MODE_CLIENT_PREFER})
		dated := func(ts int64, n uint64) {
			req := batch(d, "x")
			req.Records[0].SetTimestamp(ts)
			l.append(req, n, n+1)
		}
		for i := range uint64(6) { // record i at 100+10*i
			dated(int64(100+10*i), i)
		}
		if _, err := l.trim(d, 1); err != nil {
			t.Fatal(err)
		}
		w.span(w.writer.chainID(), 4).settle()
		l.followSettled(t.Context())

		bySeq := func(n uint64) *sequencerpb.FetchRequest {
			return &sequencerpb.FetchRequest{Start: &sequencerpb.FetchRequest_Seq{Seq: n}}
		}
		byTime := func(ts int64) *sequencerpb.FetchRequest {
			return &sequencerpb.FetchRequest{Start: &sequencerpb.FetchRequest_Timestamp{Timestamp: ts}}
		}
		back := func(n uint64) *sequencerpb.FetchRequest {
			return &sequencerpb.FetchRequest{Start: &sequencerpb.FetchRequest_TailOffset{TailOffset: n}}
		}
		clamped := bySeq(0)
		clamped.Clamp = true
		for what, c := range map[string]struct {
			req   *sequencerpb.FetchRequest
			start uint64
			n     int  // pieces
			seek  bool // among settled records
			err   reason.Reason
		}{
			"trimmed":                       {req: bySeq(0), err: reason.Trimmed},
			"below the first one, clamped":  {req: clamped, start: 1},
			"the first one":                 {req: bySeq(1), start: 1},
			"none":                          {req: &sequencerpb.FetchRequest{}, start: 1},
			"the last settled one":          {req: bySeq(3), start: 3},
			"the first that is not settled": {req: bySeq(4), start: 4, n: 2},
			"the tail":                      {req: bySeq(6), start: 6},
			"beyond it":                     {req: bySeq(7), err: reason.BeyondTail},
			"three from the end":            {req: back(3), start: 3},
			"two from the end":              {req: back(2), start: 4, n: 2},
			"more than there are":           {req: back(60), start: 1},
			"a time before all":             {req: byTime(5), start: 1, seek: true},
			"a time of a settled one":       {req: byTime(120), start: 1, seek: true},
			"that of the last settled one":  {req: byTime(130), start: 1, seek: true},
			"one behind it":                 {req: byTime(131), start: 4, n: 2},
			"that of one that is not":       {req: byTime(150), start: 5, n: 1},
			"a time behind all":             {req: byTime(151), start: 6},
		} {
			c.req.Stream, c.req.MaxBytes = key(d), 1<<20
			for _, wait := range []uint32{0, 1000} {
				c.req.WaitMs = wait
				began := time.Now()
				res, err := l.Fetch(t.Context(), c.req)
				if c.err != "" {
					if !reason.Is(err, c.err) {
						t.Errorf("%s: %v, %v", what, res, err)
					}
					continue
				}
				if err != nil || res.GetStartSeq() != c.start || len(res.GetPieces()) != c.n || res.GetSeekSettled() != c.seek || res.GetSettledTo() != 4 {
					t.Errorf("%s: %v, %v; want start %d and %d pieces", what, res, err, c.start, c.n)
				}
				if waited := time.Since(began) > 0; waited != (wait > 0 && c.start == 6) {
					t.Errorf("%s: waited %v", what, waited)
				}
			}
		}

		// All that is settled is trimmed: there is nothing to seek.
		if _, err := l.trim(d, 4); err != nil {
			t.Fatal(err)
		}
		req := byTime(5)
		req.Stream, req.MaxBytes = key(d), 1<<20
		if res, err := l.Fetch(t.Context(), req); err != nil || res.GetSeekSettled() || res.GetStartSeq() != 4 || len(res.GetPieces()) != 2 {
			t.Errorf("%v, %v", res, err)
		}
		l.stop()
	})
}

// Who waits at the tail while all before it is settled goes on with what comes (I2).
func TestWaitingAtTheTailWhileItIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{SettledEvery: time.Hour})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		for _, req := range []*sequencerpb.FetchRequest{
			{Start: &sequencerpb.FetchRequest_TailOffset{TailOffset: 0}},
			{Start: &sequencerpb.FetchRequest_Timestamp{Timestamp: 1 << 60}},
		} {
			tail := l.state(d).GetTail()
			req.Stream, req.MaxBytes, req.WaitMs = key(d), 1<<20, 60_000
			got := make(chan *sequencerpb.FetchResponse, 1)
			go func() {
				res, err := l.Fetch(t.Context(), req)
				if err != nil {
					t.Error(err)
				}
				got <- res
			}()
			synctest.Wait()
			w.settleAll()
			l.followSettled(t.Context())
			synctest.Wait()
			silent(t, "the fetch", got)
			if req.GetTimestamp() > 0 {
				time.Sleep(2 * time.Minute) // it ends by itself, having found nothing
				if res := receive(t, got); len(res.GetPieces()) > 0 || res.GetSeekSettled() {
					t.Errorf("got %v", res)
				}
				continue
			}
			l.append(batch(d, "b"), tail, tail+1)
			if res := receive(t, got); len(res.GetPieces()) != 1 || res.GetStartSeq() != tail || res.GetSettledTo() != tail {
				t.Errorf("got %v, want the piece of %d", res, tail)
			}
		}
		l.stop()
	})
}

// The bytes of a stream are counted once, whether they are settled, have
// coordinates, or both.
func TestStoredBytesAreCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{SettledEvery: time.Hour})
		d := w.stream(nil)
		for i := range uint64(3) {
			l.append(batch(d, "same"), i, i+1)
		}
		stored := func(settledToo bool) uint64 {
			t.Helper()
			res, err := l.GetState(t.Context(), &sequencerpb.GetStateRequest{Stream: key(d), StoredBytes: settledToo})
			if err != nil {
				t.Fatal(err)
			}
			return res.GetState().GetStoredBytes()
		}
		all := stored(false)
		if all == 0 || stored(true) != all {
			t.Errorf("%d and %d bytes are stored", all, stored(true))
		}
		const frames = 1 // of the test's refs
		s := w.span(w.writer.chainID(), 2)
		s.fold()
		want := all/3 + frames
		if got := stored(true); got != want {
			t.Errorf("%d bytes are stored of which some have coordinates, too; want %d", got, want)
		}
		s.advance()
		l.followSettled(t.Context())
		if got := stored(true); got != want || stored(false) != all/3 {
			t.Errorf("%d bytes are stored, want %d; %d of them with coordinates", got, want, stored(false))
		}
		// A head that was read as it was before says too little.
		old := l.rows.Script(fault.Rule{Op: fault.Get, Prefix: "head/", Do: fault.Stale, Times: 1})
		if got := stored(true); got != want || old.Acted() != 1 {
			t.Errorf("%d bytes are stored after %d old reads, want %d", got, old.Acted(), want)
		}
		l.rows.Script(fault.Rule{Op: fault.Get, Prefix: "head/", Do: fault.Stale})
		if _, err := l.GetState(t.Context(), &sequencerpb.GetStateRequest{Stream: key(d), StoredBytes: true}); reason.Code(err) != codes.Unavailable {
			t.Errorf("only old reads: %v", err)
		}
		l.stop()
	})
}
