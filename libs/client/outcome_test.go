package client

import (
	"context"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
)

// A batch whose refusal leaves it open is not called NOT_COMMITTED (I2): it may
// be stored, and whoever hears otherwise stores it again.
func TestRefusalWhoseOutcomeIsOpen(t *testing.T) {
	no := reason.New(codes.FailedPrecondition, reason.Unimplemented, "no")
	for what, c := range map[string]struct {
		sent, tried int
		cause       error
		want        reason.Outcome
	}{
		"it never left":                  {0, 0, context.Canceled, reason.NotCommitted},
		"no answer":                      {1, 0, context.Canceled, reason.Unknown},
		"refused for certain":            {1, 0, &refusal{no, reason.NotCommitted}, reason.NotCommitted},
		"refused, outcome open":          {1, 0, &refusal{no, reason.Unknown}, reason.Unknown},
		"an earlier copy may be stored":  {1, 1, &refusal{no, reason.NotCommitted}, reason.Unknown},
		"an earlier copy fails as well":  {1, 1, &refusal{reason.New(codes.FailedPrecondition, reason.SeqMismatch, "no"), reason.NotCommitted}, reason.NotCommitted},
		"and that only if it is certain": {1, 1, &refusal{reason.New(codes.FailedPrecondition, reason.SeqMismatch, "no"), reason.Unknown}, reason.Unknown},
	} {
		s := &Session{sent: c.sent, tried: c.tried}
		s.changed = sync.NewCond(&s.mu)
		s.fail(c.cause)
		if got := reason.OutcomeOf(s.err); got != c.want {
			t.Errorf("%s: outcome %q, want %q", what, got, c.want)
		}
	}
}
