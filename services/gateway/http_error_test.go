package gateway

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/reason"
)

// The table of the contract: what a failed call becomes.
func TestErrorsBecomeStatuses(t *testing.T) {
	w := newWeb(t)
	with := func(code codes.Code, r reason.Reason, meta ...string) error {
		return reason.New(code, r, "a message", meta...)
	}
	for _, c := range []struct {
		err        error
		status     int
		code       string
		key, value string
	}{
		{reason.Field("records[3].body", "too long"), 400, "INVALID_ARGUMENT", "field", "records[3].body"},
		{with(codes.NotFound, reason.BucketNotFound), 404, "NOT_FOUND", "", ""},
		{with(codes.NotFound, reason.StreamNotFound), 404, "NOT_FOUND", "", ""},
		{with(codes.AlreadyExists, reason.StreamExists), 409, "ALREADY_EXISTS", "", ""},
		{with(codes.FailedPrecondition, reason.BucketDeleting), 409, "FAILED_PRECONDITION", "", ""},
		{with(codes.FailedPrecondition, reason.BucketNotEmpty), 409, "FAILED_PRECONDITION", "", ""},
		{with(codes.FailedPrecondition, reason.StreamDeleting), 409, "FAILED_PRECONDITION", "", ""},
		{with(codes.FailedPrecondition, reason.StreamSealed, reason.KeyTail, "7"), 409, "FAILED_PRECONDITION", "tail", "7"},
		{with(codes.FailedPrecondition, reason.SeqMismatch, reason.KeyTail, "18446744073709551615"), 412, "FAILED_PRECONDITION", "tail", "18446744073709551615"},
		{with(codes.Aborted, reason.Fenced), 409, "ABORTED", "", ""},
		{with(codes.FailedPrecondition, reason.ProducerFenced, reason.KeyExpectedEpoch, "3"), 409, "FAILED_PRECONDITION", "expected_epoch", "3"},
		{with(codes.FailedPrecondition, reason.ProducerGap, reason.KeyExpectedBatchSeq, "4"), 409, "FAILED_PRECONDITION", "expected_batch_seq", "4"},
		{with(codes.OutOfRange, reason.Trimmed, reason.KeyFirstSeq, "5"), 416, "OUT_OF_RANGE", "first_seq", "5"},
		{with(codes.OutOfRange, reason.BeyondTail, reason.KeyTail, "6"), 416, "OUT_OF_RANGE", "tail", "6"},
		{reason.Over("append-pool", "a message", time.Second), 429, "RESOURCE_EXHAUSTED", "budget", "append-pool"},
		{with(codes.Unavailable, reason.NoLeader, reason.KeyOutcome, "NOT_COMMITTED"), 503, "UNAVAILABLE", "outcome", "NOT_COMMITTED"},
		{with(codes.Unavailable, reason.StorageDown), 503, "UNAVAILABLE", "", ""},
		{with(codes.DeadlineExceeded, "", reason.KeyOutcome, "UNKNOWN"), 504, "DEADLINE_EXCEEDED", "outcome", "UNKNOWN"},
		{with(codes.DataLoss, reason.ChecksumMismatch), 500, "DATA_LOSS", "", ""},
		{with(codes.Unauthenticated, ""), 401, "UNAUTHENTICATED", "", ""},
		{with(codes.PermissionDenied, ""), 403, "PERMISSION_DENIED", "", ""},
		{reason.Missing("telepathy"), 501, "UNIMPLEMENTED", "feature", "telepathy"},
		{status.Error(codes.Internal, "a message"), 500, "INTERNAL", "", ""},
		{status.Error(codes.Unknown, "a message"), 500, "UNKNOWN", "", ""},
		// What is no status tells nothing of itself.
		{errors.New("a secret"), 500, "INTERNAL", "message", "internal error"},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			w.set(nil, c.err)
			d := w.json(t, "GET", recordsPath, "").refused(t, c.status, c.code, "", "")
			if d["reason"] != string(reason.Of(c.err)) || c.key != "" && d[c.key] != c.value {
				t.Errorf("%v, want reason %q and %s %q", d, reason.Of(c.err), c.key, c.value)
			}
		})
	}
}

// Retry-After is in whole seconds, never too early.
func TestRetryAfter(t *testing.T) {
	w := newWeb(t)
	for wait, want := range map[time.Duration]string{
		0: "1", time.Millisecond: "1", time.Second: "1", 1001 * time.Millisecond: "2", 90 * time.Second: "90",
	} {
		w.set(nil, reason.Over("appends", "too much", wait))
		a := w.json(t, "GET", recordsPath, "")
		if got := a.header.Get("Retry-After"); a.status != http.StatusTooManyRequests || got != want {
			t.Errorf("%v: %d, Retry-After %q, want %q", wait, a.status, got, want)
		}
	}
	w.set(nil, reason.New(codes.NotFound, reason.StreamNotFound, "gone"))
	if got := w.json(t, "GET", recordsPath, "").header.Get("Retry-After"); got != "" {
		t.Errorf("of what will not help there is Retry-After %q", got)
	}
}
