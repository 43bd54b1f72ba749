package gateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/reason"
)

// errorBody is the answer to a failed request.
type errorBody struct {
	Code    string            `json:"code"`
	Reason  string            `json:"reason"`
	Message string            `json:"message"`
	Details map[string]string `json:"details"`
}

// errTooLarge and errMediaType have HTTP statuses that no gRPC code has.
var (
	errTooLarge  = errors.New("request body too large")
	errMediaType = errors.New("unsupported content type")
)

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // the client is gone; nothing to tell it
}

// refuse answers with a status that no gRPC code has.
func refuse(w http.ResponseWriter, status int, code, message string) {
	writeJSON(w, status, errorBody{Code: code, Message: message, Details: map[string]string{}})
}

func writeError(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, errTooLarge):
		refuse(w, http.StatusRequestEntityTooLarge, "INVALID_ARGUMENT", err.Error())
		return
	case errors.Is(err, errMediaType):
		refuse(w, http.StatusUnsupportedMediaType, "INVALID_ARGUMENT", err.Error())
		return
	}
	s, _ := status.FromError(err)
	body := errorBody{Code: codeName(s.Code()), Reason: string(reason.Of(err)), Message: s.Message(), Details: map[string]string{}}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			for k, v := range d.GetMetadata() {
				body.Details[k] = v
			}
		case *errdetails.BadRequest:
			for _, f := range d.GetFieldViolations() {
				body.Details["field"] = f.GetField()
			}
		case *errdetails.RetryInfo:
			seconds := int64(d.GetRetryDelay().AsDuration().Seconds() + 0.999)
			w.Header().Set("Retry-After", strconv.FormatInt(max(1, seconds), 10))
		}
	}
	writeJSON(w, httpStatus(s.Code(), reason.Of(err)), body)
}

func codeName(c codes.Code) string {
	// codes.Code's own text is CamelCase; the names of google.rpc.Code are these.
	names := [...]string{
		"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
		"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
	}
	if int(c) < len(names) {
		return names[c]
	}
	return "UNKNOWN"
}

// httpStatus is the table of docs/api.md.
func httpStatus(c codes.Code, r reason.Reason) int {
	switch c {
	case codes.OK:
		return http.StatusOK
	case codes.InvalidArgument:
		return http.StatusBadRequest
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	case codes.FailedPrecondition:
		if r == reason.SeqMismatch {
			return http.StatusPreconditionFailed
		}
		return http.StatusConflict
	case codes.OutOfRange:
		return http.StatusRequestedRangeNotSatisfiable
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Canceled:
		return 499 // the client has gone
	case codes.Unknown, codes.Internal, codes.DataLoss:
	}
	return http.StatusInternalServerError
}
