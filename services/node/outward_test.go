package node

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/reason"
)

// Whatever fails within, no key, row or address reaches a caller; what it may do
// about it does.
func TestOutwardTellsNothingOfWhatIsWithin(t *testing.T) {
	const secret = "oxia 10.0.0.1:6648: chain/01M8/000000000000000a"
	for _, c := range []struct {
		name string
		in   error
		code codes.Code
		why  reason.Reason
	}{
		{"a metastore that is away", reason.New(codes.Unavailable, reason.StorageDown, secret), codes.Unavailable, reason.StorageDown},
		{"a leader elsewhere", reason.New(codes.FailedPrecondition, reason.NotLeader, secret, reason.KeyAddress, secret), codes.Unavailable, ""},
		{"no leader", reason.New(codes.Unavailable, reason.NoLeader, secret), codes.Unavailable, reason.NoLeader},
		{"a lost race", reason.New(codes.Aborted, reason.VersionConflict, secret), codes.Unavailable, ""},
		{"a missing row", reason.New(codes.NotFound, reason.RowNotFound, secret), codes.Unavailable, ""},
		{"a damaged directory", reason.New(codes.DataLoss, "", secret), codes.DataLoss, ""},
		{"a lost connection", status.Error(codes.Unavailable, secret), codes.Unavailable, ""},
		{"a deadline within", status.Error(codes.DeadlineExceeded, secret), codes.DeadlineExceeded, ""},
		{"a defect", status.Error(codes.Internal, secret), codes.Internal, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, outcome := range []reason.Outcome{reason.NotCommitted, reason.Unknown} {
				out := outward(t.Context(), slog.New(slog.DiscardHandler), reason.WithOutcome(c.in, outcome))
				if status.Code(out) != c.code || reason.Of(out) != c.why || reason.OutcomeOf(out) != outcome {
					t.Errorf("told %v %q %q, want %v %q %q", status.Code(out), reason.Of(out), reason.OutcomeOf(out), c.code, c.why, outcome)
				}
				if strings.Contains(out.Error(), secret) || reason.Meta(out, reason.KeyAddress) != "" {
					t.Errorf("it says %v", out)
				}
			}
		})
	}
}

// What is the caller's own matter is told as it is.
func TestOutwardKeepsWhatIsMeantForCallers(t *testing.T) {
	for _, err := range []error{
		nil, errors.New("without a status"),
		reason.Field("bucket", "must be 3..63 characters"),
		reason.New(codes.FailedPrecondition, reason.SeqMismatch, "match_seq is 1, the next number is 2", reason.KeyTail, "2"),
		reason.New(codes.DataLoss, reason.ChecksumMismatch, "records from 7 on are damaged in storage"),
		reason.New(codes.NotFound, reason.StreamNotFound, "the stream is deleted"),
		reason.New(codes.DeadlineExceeded, reason.StorageDown, "append: storage did not confirm it within 30s"),
	} {
		if out := outward(t.Context(), slog.New(slog.DiscardHandler), err); !errors.Is(out, err) {
			t.Errorf("told %v instead of %v", out, err)
		}
	}
}
