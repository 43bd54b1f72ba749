package reader

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// numbered returns bodies that say which record they belong to.
func numbered(from, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint("record ", from+i)
	}
	return out
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	w.t.Cleanup(cancel)
	return ctx
}

func (w *world) read(req *novapb.ReadRequest) (*novapb.ReadResponse, error) {
	req.Bucket, req.Stream = "b", "s"
	if w.whole {
		req.Chunks = true
	}
	res, err := w.svc.Read(w.ctx(), req)
	if w.whole {
		opened(w.t, res)
	}
	return res, err
}

// mustRead reads and checks that numbers are contiguous from first and bodies
// are those of numbered.
func (w *world) mustRead(req *novapb.ReadRequest, first, n int) *novapb.ReadResponse {
	w.t.Helper()
	res, err := w.read(req)
	if err != nil {
		w.t.Fatalf("%v: %v", req, err)
	}
	w.wantRecords(res.GetRecords(), first, n)
	if res.GetNextSeq() != uint64(first+n) {
		w.t.Fatalf("%v: next is %d, want %d", req, res.GetNextSeq(), first+n)
	}
	return res
}

func (w *world) wantRecords(got []*novapb.Record, first, n int) {
	w.t.Helper()
	if len(got) != n {
		w.t.Fatalf("%d records, want %d from %d", len(got), n, first)
	}
	for i, r := range got {
		if r.GetSeq() != uint64(first+i) || string(r.GetBody()) != fmt.Sprint("record ", first+i) {
			w.t.Fatalf("record %d is %d %.40q", first+i, r.GetSeq(), r.GetBody())
		}
	}
}

func want(t *testing.T, err error, code codes.Code, r reason.Reason) {
	t.Helper()
	if reason.Code(err) != code || reason.Of(err) != r {
		t.Fatalf("got %v %q (%v), want %v %q", reason.Code(err), reason.Of(err), err, code, r)
	}
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
