package reason

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestAnErrorKeepsReasonMetadataAndOutcomeThroughWrapping(t *testing.T) {
	err := New(codes.FailedPrecondition, SeqMismatch, "match_seq is 3, the next number is 7", KeyTail, Text(uint64(7)))
	err = fmt.Errorf("append: %w", WithOutcome(err, NotCommitted))
	if Of(err) != SeqMismatch || OutcomeOf(err) != NotCommitted || Code(err) != codes.FailedPrecondition {
		t.Fatalf("got %q %q %v", Of(err), OutcomeOf(err), Code(err))
	}
	if n, ok := Number(err, KeyTail); !ok || n != 7 {
		t.Fatalf("tail: %d %v", n, ok)
	}
	if again := WithOutcome(err, Unknown); OutcomeOf(again) != NotCommitted {
		t.Fatalf("a second outcome replaced the first: %v", OutcomeOf(again))
	}
}

func TestAnOutcomeIsAddedToAnyError(t *testing.T) {
	for _, err := range []error{errors.New("plain"), context.DeadlineExceeded, Field("records", "too many"), Over("pool", "full", time.Second)} {
		got := WithOutcome(err, Unknown)
		if OutcomeOf(got) != Unknown {
			t.Errorf("%v: no outcome", err)
		}
	}
	got := WithOutcome(Over("pool", "full", 2*time.Second), NotCommitted)
	if Of(got) != OverBudget || Meta(got, KeyBudget) != "pool" {
		t.Errorf("reason lost: %v", got)
	}
	retry := false
	for _, d := range status.Convert(got).Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			retry = r.GetRetryDelay().AsDuration() == 2*time.Second
		}
	}
	if !retry {
		t.Error("RetryInfo lost")
	}
}

func TestErrorsWithoutDetailsHaveNoReason(t *testing.T) {
	if Of(nil) != "" || Of(errors.New("x")) != "" || Code(context.Canceled) != codes.Canceled || Code(nil) != codes.OK {
		t.Fatal("made up a reason or a code")
	}
}
