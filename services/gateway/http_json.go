package gateway

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// errorBody is the answer to a failed request.
type errorBody struct {
	Code    string            `json:"code"`
	Reason  string            `json:"reason,omitempty"`
	Message string            `json:"message"`
	Details map[string]string `json:"details,omitempty"`
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

func writeError(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, errTooLarge):
		writeJSON(w, http.StatusRequestEntityTooLarge, errorBody{Code: "INVALID_ARGUMENT", Message: err.Error()})
		return
	case errors.Is(err, errMediaType):
		writeJSON(w, http.StatusUnsupportedMediaType, errorBody{Code: "INVALID_ARGUMENT", Message: err.Error()})
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

// mediaType returns the request's content type without parameters.
func mediaType(r *http.Request) string {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return r.Header.Get("Content-Type")
	}
	return t
}

// readBody returns the whole body, at most limit bytes.
func readBody(r *http.Request, limit int64) ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, limit))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, fmt.Errorf("%w: the limit is %d bytes", errTooLarge, limit)
	}
	if err != nil {
		return nil, reason.Field("body", "cannot be read: "+err.Error())
	}
	return b, nil
}

// decodeBody decodes a JSON body into v; an empty one leaves v as it is.
func decodeBody(r *http.Request, v any) error {
	b, err := readBody(r, maxJSONBody)
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return nil
	}
	if t := mediaType(r); t != "application/json" {
		return fmt.Errorf("%w: %q, want application/json", errMediaType, t)
	}
	return decodeJSON(b, v)
}

// decodeJSON is strict: unknown fields, a second value, and text that is not
// UTF-8 are errors. Go's decoder would put replacement characters in its place.
func decodeJSON(b []byte, v any) error {
	if !utf8.Valid(b) {
		return reason.Field("body", `must be valid UTF-8; send other bytes with "encoding":"base64"`)
	}
	if loneSurrogate(b) {
		return reason.Field("body", `holds an escaped surrogate without its pair; send such bytes with "encoding":"base64"`)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return jsonError(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return reason.Field("body", "must be one JSON value")
	}
	return nil
}

func jsonError(err error) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) && kind.Field != "" {
		return reason.Field(kind.Field, "must be a "+kind.Type.String()+", is a "+kind.Value)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return reason.Field(strings.Trim(name, `"`), "is not a field of this request")
	}
	return reason.Field("body", "is not valid JSON: "+err.Error())
}

// loneSurrogate finds a \uD800..\uDFFF escape that is not half of a pair.
func loneSurrogate(b []byte) bool {
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' || i+1 >= len(b) {
			continue
		}
		if b[i+1] != 'u' {
			i++ // an escaped character, perhaps a backslash
			continue
		}
		unit, ok := escapedUnit(b[i:])
		if !ok {
			return false // not JSON; the decoder says so
		}
		i += 5
		switch {
		case unit >= 0xDC00 && unit <= 0xDFFF:
			return true
		case unit >= 0xD800 && unit <= 0xDBFF:
			low, ok := escapedUnit(b[i+1:])
			if !ok || low < 0xDC00 || low > 0xDFFF {
				return true
			}
			i += 6
		}
	}
	return false
}

func escapedUnit(b []byte) (uint64, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	v, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	return v, err == nil
}

// recordJSON is a record in either direction. Encoding "base64" says that body
// and headers are base64, because not all of them are UTF-8.
type recordJSON struct {
	Seq       *uint64     `json:"seq,omitempty"`
	Timestamp *int64      `json:"timestamp,omitempty"`
	Headers   [][2]string `json:"headers"`
	Body      string      `json:"body"`
	Encoding  string      `json:"encoding,omitempty"`
}

const base64Encoding = "base64"

// toRecord returns the record to append; path names it in errors.
func (r *recordJSON) toRecord(path string) (*novapb.AppendRecord, error) {
	if r.Seq != nil {
		return nil, reason.Field(path+".seq", "is given by the stream; use match_seq to expect a number")
	}
	get := func(field, s string) ([]byte, error) { return []byte(s), nil }
	switch r.Encoding {
	case "":
	case base64Encoding:
		get = func(field, s string) ([]byte, error) {
			b, err := base64.StdEncoding.DecodeString(s)
			if err != nil {
				return nil, reason.Field(path+"."+field, "is not base64: "+err.Error())
			}
			return b, nil
		}
	default:
		return nil, reason.Field(path+".encoding", fmt.Sprintf("must be %q or absent, is %q", base64Encoding, r.Encoding))
	}
	out := &novapb.AppendRecord{Timestamp: r.Timestamp}
	var err error
	if out.Body, err = get("body", r.Body); err != nil {
		return nil, err
	}
	for i, h := range r.Headers {
		name, err := get(fmt.Sprintf("headers[%d]", i), h[0])
		if err != nil {
			return nil, err
		}
		value, err := get(fmt.Sprintf("headers[%d]", i), h[1])
		if err != nil {
			return nil, err
		}
		out.Headers = append(out.Headers, &novapb.Header{Name: name, Value: value})
	}
	return out, nil
}

// fromRecord returns the JSON form of a record.
func fromRecord(r *novapb.Record) recordJSON {
	plain := utf8.Valid(r.GetBody())
	for _, h := range r.GetHeaders() {
		plain = plain && utf8.Valid(h.GetName()) && utf8.Valid(h.GetValue())
	}
	put := func(b []byte) string { return string(b) }
	out := recordJSON{Seq: &r.Seq, Timestamp: &r.Timestamp, Headers: make([][2]string, 0, len(r.GetHeaders()))}
	if !plain {
		out.Encoding = base64Encoding
		put = base64.StdEncoding.EncodeToString
	}
	out.Body = put(r.GetBody())
	for _, h := range r.GetHeaders() {
		out.Headers = append(out.Headers, [2]string{put(h.GetName()), put(h.GetValue())})
	}
	return out
}

// query reads typed parameters; the first bad or unknown one is kept.
type query struct {
	r    *http.Request
	seen map[string]bool
	err  error
}

func newQuery(r *http.Request) *query { return &query{r: r, seen: map[string]bool{}} }

func (q *query) text(name string) string {
	q.seen[name] = true
	return q.r.URL.Query().Get(name)
}

func (q *query) uint(name string) *uint64 {
	s := q.text(name)
	if s == "" {
		return nil
	}
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil && q.err == nil {
		q.err = reason.Field(name, fmt.Sprintf("must be a number from 0 on, is %q", s))
	}
	return &v
}

func (q *query) uint32(name string) uint32 {
	v := q.uint(name)
	if v == nil {
		return 0
	}
	if *v > 1<<31 && q.err == nil {
		q.err = reason.Field(name, fmt.Sprintf("must be at most %d", 1<<31))
	}
	return uint32(*v)
}

func (q *query) millis(name string) *int64 {
	s := q.text(name)
	if s == "" {
		return nil
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil && q.err == nil {
		q.err = reason.Field(name, fmt.Sprintf("must be milliseconds since 1970, is %q", s))
	}
	return &v
}

func (q *query) bool(name string) bool {
	s := q.text(name)
	if s == "" {
		return q.r.URL.Query().Has(name) // ?clamp means ?clamp=true
	}
	v, err := strconv.ParseBool(s)
	if err != nil && q.err == nil {
		q.err = reason.Field(name, fmt.Sprintf("must be true or false, is %q", s))
	}
	return v
}

// done returns the first error: a bad parameter, or one that is not known.
func (q *query) done() error {
	if q.err != nil {
		return q.err
	}
	for name := range q.r.URL.Query() {
		if !q.seen[name] {
			return reason.Field(name, "is not a parameter of this request")
		}
	}
	return nil
}

// maxLine limits one line of application/x-ndjson: a record in base64 with its
// fields.
const maxLine = 2*stream.MaxRecordBytes + 64<<10
