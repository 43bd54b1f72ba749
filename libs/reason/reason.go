// Package reason is the one place where Nova's errors become gRPC statuses: a
// code, a reason of the ErrorInfo detail that programs branch on, and metadata
// such as the tail. It works the same over a network and in process.
package reason

import (
	"errors"
	"maps"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Domain is the ErrorInfo domain of every reason here.
const Domain = "nova"

// Reason names why a call failed. Programs branch on it.
type Reason string

// The reasons a client can meet (docs/api.md).
const (
	BucketNotFound   Reason = "BUCKET_NOT_FOUND"
	BucketExists     Reason = "BUCKET_EXISTS"
	BucketDeleting   Reason = "BUCKET_DELETING"
	BucketNotEmpty   Reason = "BUCKET_NOT_EMPTY"
	StreamNotFound   Reason = "STREAM_NOT_FOUND"
	StreamExists     Reason = "STREAM_EXISTS"
	StreamDeleting   Reason = "STREAM_DELETING"
	StreamSealed     Reason = "STREAM_SEALED" // metadata: tail
	StreamQuarantine Reason = "STREAM_QUARANTINED"
	SeqMismatch      Reason = "SEQ_MISMATCH" // metadata: tail
	Fenced           Reason = "FENCED"
	ProducerFenced   Reason = "PRODUCER_FENCED" // metadata: expected_epoch
	ProducerGap      Reason = "PRODUCER_GAP"    // metadata: expected_batch_seq
	Trimmed          Reason = "TRIMMED"         // metadata: first_seq
	BeyondTail       Reason = "BEYOND_TAIL"     // metadata: tail
	NotLeader        Reason = "NOT_LEADER"      // metadata: address, epoch
	NoLeader         Reason = "NO_LEADER"
	OverBudget       Reason = "OVER_BUDGET" // metadata: budget
	StorageDown      Reason = "STORAGE_UNAVAILABLE"
	ChecksumMismatch Reason = "CHECKSUM_MISMATCH"
	Unimplemented    Reason = "FEATURE_MISSING" // metadata: feature
	NodeNotFound     Reason = "NODE_NOT_FOUND"
	NodeUnavailable  Reason = "NODE_UNAVAILABLE"
)

// The reasons that stay inside the trust domain.
const (
	VersionConflict Reason = "VERSION_CONFLICT"
	RuleBroken      Reason = "RULE_BROKEN"
	RowNotFound     Reason = "ROW_NOT_FOUND"
	ObjectNotFound  Reason = "OBJECT_NOT_FOUND"
	ChainSealed     Reason = "CHAIN_SEALED" // metadata: cut
	EpochFenced     Reason = "EPOCH_FENCED" // metadata: epoch
	EntryGap        Reason = "ENTRY_GAP"    // metadata: expected_entry
	// DirectoryVanished: what was asked for may be settled by now.
	DirectoryVanished Reason = "DIRECTORY_VANISHED"
)

// Metadata keys.
const (
	KeyOutcome          = "outcome"
	KeyTail             = "tail"
	KeyFirstSeq         = "first_seq"
	KeyAddress          = "address"
	KeyEpoch            = "epoch"
	KeyExpectedEpoch    = "expected_epoch"
	KeyExpectedBatchSeq = "expected_batch_seq"
	KeyBudget           = "budget"
	KeyCut              = "cut"
	KeyExpectedEntry    = "expected_entry"
	KeyFeature          = "feature"
	KeyNextSeq          = "next_seq"
)

// Outcome says what became of a failed append.
type Outcome string

// The outcomes.
const (
	// NotCommitted: nothing was stored, nor will be.
	NotCommitted Outcome = "NOT_COMMITTED"
	// Unknown: it may be stored.
	Unknown Outcome = "UNKNOWN"
)

// New returns a status error with an ErrorInfo. meta is key, value, key, value.
func New(code codes.Code, r Reason, message string, meta ...string) error {
	return build(code, message, r, pairs(meta))
}

// Field returns INVALID_ARGUMENT for one request field: its path in the
// request, and what is wrong with it, naming the limit.
func Field(path, problem string) error {
	return withDetails(status.New(codes.InvalidArgument, path+": "+problem),
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: path, Description: problem}}})
}

// Missing returns UNIMPLEMENTED for a feature of the contract that this
// version does not have.
func Missing(feature string) error {
	return New(codes.Unimplemented, Unimplemented, feature+" is not available in this version", KeyFeature, feature)
}

// Over returns RESOURCE_EXHAUSTED for a budget, with a hint when to try again.
func Over(budget, message string, retry time.Duration) error {
	s := status.New(codes.ResourceExhausted, message)
	return withDetails(s,
		&errdetails.ErrorInfo{Reason: string(OverBudget), Domain: Domain, Metadata: map[string]string{KeyBudget: budget}},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(retry)})
}

// WithOutcome returns err as a status error whose ErrorInfo carries the
// outcome; an outcome that is there already stays.
func WithOutcome(err error, o Outcome) error {
	if err == nil || OutcomeOf(err) != "" {
		return err
	}
	s := status.Convert(err)
	out := status.New(s.Code(), s.Message())
	details := make([]protoadapt.MessageV1, 0, len(s.Details())+1)
	found := false
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			found = true
			meta := maps.Clone(d.GetMetadata())
			if meta == nil {
				meta = map[string]string{}
			}
			meta[KeyOutcome] = string(o)
			details = append(details, &errdetails.ErrorInfo{Reason: d.GetReason(), Domain: d.GetDomain(), Metadata: meta})
		case protoadapt.MessageV1:
			details = append(details, d)
		}
	}
	if !found {
		details = append(details, &errdetails.ErrorInfo{Domain: Domain, Metadata: map[string]string{KeyOutcome: string(o)}})
	}
	return withDetails(out, details...)
}

// Of returns the reason of an error, "" if it has none.
func Of(err error) Reason {
	return Reason(info(err).GetReason())
}

// Is reports whether err has the reason.
func Is(err error, r Reason) bool { return err != nil && Of(err) == r }

// OutcomeOf returns the outcome an error carries, "" if none.
func OutcomeOf(err error) Outcome {
	return Outcome(info(err).GetMetadata()[KeyOutcome])
}

// Meta returns a metadata value of an error, "" if it is not there.
func Meta(err error, key string) string { return info(err).GetMetadata()[key] }

// Number returns a numeric metadata value of an error.
func Number(err error, key string) (uint64, bool) {
	n, perr := strconv.ParseUint(Meta(err, key), 10, 64)
	return n, perr == nil
}

// Text formats a number as a metadata value.
func Text[N ~uint64 | ~uint32](n N) string { return strconv.FormatUint(uint64(n), 10) }

// Code returns the gRPC code of an error, also of a wrapped one.
func Code(err error) codes.Code {
	var g interface{ GRPCStatus() *status.Status }
	if errors.As(err, &g) {
		return g.GRPCStatus().Code()
	}
	return status.FromContextError(err).Code()
}

func info(err error) *errdetails.ErrorInfo {
	var g interface{ GRPCStatus() *status.Status }
	if err == nil || !errors.As(err, &g) {
		return nil
	}
	for _, d := range g.GRPCStatus().Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok {
			return i
		}
	}
	return nil
}

func build(code codes.Code, message string, r Reason, meta map[string]string) error {
	return withDetails(status.New(code, message), &errdetails.ErrorInfo{Reason: string(r), Domain: Domain, Metadata: meta})
}

func withDetails(s *status.Status, details ...protoadapt.MessageV1) error {
	// Only an OK status refuses details, and none is built here.
	if d, err := s.WithDetails(details...); err == nil {
		s = d
	}
	return s.Err()
}

func pairs(kv []string) map[string]string {
	if len(kv) == 0 {
		return nil
	}
	m := make(map[string]string, len(kv)/2)
	for i := 0; i+1 < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}

// Annotate returns err as a status error with a sentence before its message;
// code and details stay.
func Annotate(err error, sentence string) error {
	s := status.Convert(err)
	details := make([]protoadapt.MessageV1, 0, len(s.Details()))
	for _, d := range s.Details() {
		if m, ok := d.(protoadapt.MessageV1); ok {
			details = append(details, m)
		}
	}
	return withDetails(status.New(s.Code(), sentence+": "+s.Message()), details...)
}
