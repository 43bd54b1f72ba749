package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

const (
	linesKind = "application/x-ndjson"
	firstTail = 10
)

// log is a session that keeps what it is sent and refuses what refuse says.
type log struct {
	open    *novapb.AppendSessionOpen
	batches [][]*novapb.AppendRecord
	refuse  func(batch int) error
}

func (l *log) records() (out []*novapb.AppendRecord) {
	for _, b := range l.batches {
		out = append(out, b...)
	}
	return out
}

// serve answers like a sequencer: an ack for each batch, and at the first
// failure one for it and one for a batch behind it, then the end of the call.
func (l *log) serve(srv novapb.AppendService_AppendSessionServer) error {
	msg, err := srv.Recv()
	if err != nil {
		return err
	}
	l.open = msg.GetOpen()
	if err := srv.Send(&novapb.AppendSessionResponse{Message: &novapb.AppendSessionResponse_Opened{
		Opened: &novapb.AppendSessionOpened{StreamId: "id", Tail: firstTail},
	}}); err != nil {
		return err
	}
	for next := uint64(firstTail); ; {
		msg, err := srv.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		index := uint64(len(l.batches))
		if l.refuse != nil {
			if err := l.refuse(int(index)); err != nil {
				for i, f := range []*novapb.AppendSessionFailure{
					{Code: int32(reason.Code(err)), Reason: string(reason.Of(err)), Message: "failed", Outcome: novapb.Outcome_OUTCOME_NOT_COMMITTED},
					{Code: int32(codes.Aborted), Message: "an earlier one failed", Outcome: novapb.Outcome_OUTCOME_NOT_COMMITTED},
				} {
					if err := srv.Send(&novapb.AppendSessionResponse{BatchIndex: index + uint64(i), Message: &novapb.AppendSessionResponse_Failure{Failure: f}}); err != nil {
						return err
					}
				}
				return err
			}
		}
		records := msg.GetBatch().GetRecords()
		l.batches = append(l.batches, records)
		ack := &novapb.AppendAck{
			FirstSeq: next, NextSeq: next + uint64(len(records)), Tail: next + uint64(len(records)),
			FirstTimestamp: int64(next), LastTimestamp: int64(next) + int64(len(records)) - 1, ContentHash: next + uint64(len(records)),
		}
		next = ack.GetNextSeq()
		if err := srv.Send(&novapb.AppendSessionResponse{BatchIndex: index, Message: &novapb.AppendSessionResponse_Ack{Ack: ack}}); err != nil {
			return err
		}
	}
}

// Many lines are stored in batches within the limits, in order, and told in one
// summary.
func TestLinesOfAnyNumberHaveOneSummary(t *testing.T) {
	w, l := newWeb(t), &log{}
	w.session = l.serve
	const n = 2*stream.MaxBatchRecords + 345
	var body strings.Builder
	for i := range n {
		fmt.Fprintf(&body, "{\"body\":\"r%d\"}\n", i)
	}
	w.send(t, "POST", recordsPath, linesKind, strings.NewReader(body.String())).ok(t, fmt.Sprintf(
		`{"records":%d,"first_seq":%d,"next_seq":%d,"tail":%d,"first_timestamp":%d,"last_timestamp":%d,"content_hash":"%016x","stream_id":"id"}`,
		n, firstTail, firstTail+n, firstTail+n, firstTail, firstTail+n-1, firstTail+n))
	if l.open.GetBucket() != "bucket" || l.open.GetStream() != "s" {
		t.Errorf("opened %v", l.open)
	}
	got := l.records()
	if len(got) != n {
		t.Fatalf("%d records, want %d", len(got), n)
	}
	for i, r := range got {
		if string(r.GetBody()) != fmt.Sprint("r", i) {
			t.Fatalf("record %d is %q", i, r.GetBody())
		}
	}
	for i, b := range l.batches {
		if len(b) > stream.MaxBatchRecords {
			t.Errorf("batch %d has %d records", i, len(b))
		}
	}
}

// Large lines fill batches by bytes: the largest record, in base64, is one line.
func TestLargeLinesFitTheirBatches(t *testing.T) {
	w, l := newWeb(t), &log{}
	w.session = l.serve
	large, err := json.Marshal(map[string]string{"body": strings.Repeat("\x00", stream.MaxRecordBytes/4)})
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(map[string]any{"body": make([]byte, stream.MaxRecordBytes), "encoding": "base64"})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Repeat(string(encoded)+"\n", 4) + strings.Repeat(string(large)+"\n", 3)
	if a := w.send(t, "POST", recordsPath, linesKind, strings.NewReader(lines)); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if n := len(l.records()); n != 7 {
		t.Errorf("%d records, want 7", n)
	}
	for i, b := range l.batches {
		size := 0
		for _, r := range b {
			size += len(r.GetBody())
		}
		if size > stream.MaxBatchBytes || size == 0 {
			t.Errorf("batch %d has %d bytes", i, size)
		}
	}
}

func TestLineForms(t *testing.T) {
	w := newWeb(t)
	for what, c := range map[string]struct {
		body string
		want []string
	}{
		"a last line without LF": {"{\"body\":\"a\"}\n{\"body\":\"b\"}", []string{"a", "b"}},
		"CR LF":                  {"{\"body\":\"a\"}\r\n{\"body\":\"b\"}\r\n", []string{"a", "b"}},
		"blank lines":            {"\n{\"body\":\"a\"}\n\n  \n{\"body\":\"b\"}\n\n", []string{"a", "b"}},
		"an empty record":        {"{}\n", []string{""}},
		"an escaped LF":          {`{"body":"a\nb"}`, []string{"a\nb"}},
	} {
		t.Run(what, func(t *testing.T) {
			l := &log{}
			w.session = l.serve
			var sum struct {
				Records  int    `json:"records"`
				FirstSeq uint64 `json:"first_seq"`
				NextSeq  uint64 `json:"next_seq"`
			}
			a := w.send(t, "POST", recordsPath, linesKind, strings.NewReader(c.body))
			if err := json.Unmarshal([]byte(a.body), &sum); err != nil || a.status != http.StatusOK {
				t.Fatalf("%d %s: %v", a.status, a.body, err)
			}
			if sum.Records != len(c.want) || sum.FirstSeq != firstTail || sum.NextSeq != firstTail+uint64(len(c.want)) {
				t.Errorf("summary %s", a.body)
			}
			var got []string
			for _, r := range l.records() {
				got = append(got, string(r.GetBody()))
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("stored %q, want %q", got, c.want)
			}
		})
	}
}

// No lines store nothing, and claim no content hash.
func TestNoLines(t *testing.T) {
	w, l := newWeb(t), &log{}
	w.session = l.serve
	w.send(t, "POST", recordsPath, linesKind, nil).ok(t, `{"records":0,"first_seq":10,"next_seq":10,"tail":10,"first_timestamp":0,"last_timestamp":0,"stream_id":"id"}`)
}

// The lines before a bad one are stored, the answer says how many, and names
// the line.
func TestABadLineNamesItself(t *testing.T) {
	w := newWeb(t)
	for _, c := range []struct {
		what, line string
		status     int
		field      string
	}{
		{"not JSON", `{"body":`, 400, "body"},
		{"two values", `{"body":"a"}{"body":"b"}`, 400, "body"},
		{"an unknown key", `{"bdoy":"a"}`, 400, "bdoy"},
		{"null", `null`, 400, "line 3"},
		{"a list", `[{"body":"a"}]`, 400, "body"},
		{"no base64", `{"body":"?","encoding":"base64"}`, 400, "line 3.body"},
		{"a bad header", `{"headers":[["","v"]]}`, 400, "line 3.headers[0].name"},
		{"not UTF-8", "{\"body\":\"\xff\"}", 400, "body"},
		{"a large record", fmt.Sprintf(`{"body":%q}`, strings.Repeat("x", stream.MaxRecordBytes+1)), 400, "line 3"},
		{"a large line", fmt.Sprintf(`{"body":%q}`, strings.Repeat("x", maxLine)), 413, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			l := &log{}
			w.session = l.serve
			a := w.send(t, "POST", recordsPath, linesKind, strings.NewReader("{\"body\":\"1\"}\n{\"body\":\"2\"}\n"+c.line+"\n{\"body\":\"4\"}\n"))
			key := "field"
			if c.field == "" {
				key = ""
			}
			d := a.refused(t, c.status, "INVALID_ARGUMENT", key, c.field)
			if !strings.Contains(d["message"], "2 records were stored before, seq 10..11") || !strings.Contains(d["message"], "line 3") {
				t.Errorf("message %q", d["message"])
			}
			if n := len(l.records()); n != 2 {
				t.Errorf("%d records stored, want 2", n)
			}
		})
	}
}

// A failure of the session comes with all it says, such as the tail and when to
// try again.
func TestAFailedBatchSaysWhatWasStored(t *testing.T) {
	w := newWeb(t)
	for _, c := range []struct {
		err        error
		status     int
		key, value string
	}{
		{reason.New(codes.FailedPrecondition, reason.StreamSealed, "sealed", reason.KeyTail, "11"), 409, reason.KeyTail, "11"},
		{reason.Over("appends", "too much", 3*time.Second), 429, reason.KeyBudget, "appends"},
	} {
		l := &log{refuse: func(batch int) error {
			if batch < 1 {
				return nil
			}
			return reason.WithOutcome(c.err, reason.NotCommitted)
		}}
		w.session = l.serve
		a := w.send(t, "POST", recordsPath, linesKind, strings.NewReader(strings.Repeat("{\"body\":\"a\"}\n", stream.MaxBatchRecords+1)))
		d := a.refused(t, c.status, codeName(reason.Code(c.err)), c.key, c.value)
		if d["reason"] != string(reason.Of(c.err)) || d["outcome"] != "NOT_COMMITTED" {
			t.Errorf("%s", a.body)
		}
		if n := len(l.batches[0]); !strings.Contains(d["message"], fmt.Sprintf("%d records were stored before", n)) {
			t.Errorf("%d were stored, the message is %q", n, d["message"])
		}
		if c.status == 429 && a.header.Get("Retry-After") != "3" {
			t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
		}
	}
}

// A failure is told at once, not when the client has sent the rest: a client
// that follows something would never hear of it.
func TestAFailureDoesNotWaitForTheBody(t *testing.T) {
	w := newWeb(t)
	sealed := reason.New(codes.FailedPrecondition, reason.StreamSealed, "sealed")
	for what, session := range map[string]func(novapb.AppendService_AppendSessionServer) error{
		"of a batch":   (&log{refuse: func(int) error { return sealed }}).serve,
		"of the start": func(novapb.AppendService_AppendSessionServer) error { return sealed },
	} {
		t.Run(what, func(t *testing.T) {
			w.session = session
			body, feed := io.Pipe()
			defer func() { _ = feed.Close() }()
			go func() { _, _ = io.WriteString(feed, "{\"body\":\"a\"}\n") }() // and no more
			a := w.send(t, "POST", recordsPath, linesKind, body)
			a.refused(t, http.StatusConflict, "FAILED_PRECONDITION", "", "")
			if !a.last {
				t.Error("the rest of the body stands before the next request of the connection")
			}
			// The connection was given up; the next request has another.
			w.session = (&log{}).serve
			if a := w.send(t, "POST", recordsPath, linesKind, strings.NewReader("{}")); a.status != http.StatusOK {
				t.Errorf("the next request: %d %s", a.status, a.body)
			}
		})
	}
}
