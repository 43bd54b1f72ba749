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
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

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

// noBody refuses a body: what stands in it would not be heeded.
func noBody(r *http.Request) error {
	if n, _ := io.ReadFull(r.Body, make([]byte, 1)); n > 0 {
		return reason.Field("body", "must be empty; parameters of this request stand in its query")
	}
	return nil
}

// decodeBody decodes a JSON body into v; an empty one leaves v as it is. A
// request with a body has no parameters in its query.
func decodeBody(r *http.Request, v any) error {
	if err := newQuery(r).done(); err != nil {
		return err
	}
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
	if errors.As(err, &kind) {
		field := kind.Field
		if field == "" {
			field = "body"
		}
		return reason.Field(field, "must be "+kindName(kind.Type)+", not "+kind.Value)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return reason.Field(strings.Trim(name, `"`), "is not a field of this request")
	}
	return reason.Field("body", "is not valid JSON: "+err.Error())
}

// kindName says what a Go type is in JSON.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return kindName(t.Elem())
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Uint64:
		return "a whole number from 0 to 2^64-1"
	case reflect.Int64:
		return "a whole number"
	default:
		return "an object"
	}
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
	Seq       *uint64    `json:"seq,omitempty"`
	Timestamp *int64     `json:"timestamp,omitempty"`
	Headers   [][]string `json:"headers"`
	Body      string     `json:"body"`
	Encoding  string     `json:"encoding,omitempty"`
}

const base64Encoding = "base64"

// toRecord returns the record to append; path names it in errors.
func (r *recordJSON) toRecord(path string) (*novapb.AppendRecord, error) {
	if r == nil {
		return nil, reason.Field(path, "must be an object, is null")
	}
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
	out := novapb.AppendRecord_builder{Timestamp: r.Timestamp}.Build()
	var err error
	if out.Body, err = get("body", r.Body); err != nil {
		return nil, err
	}
	for i, h := range r.Headers {
		// Not [2]string: Go would drop what is too much.
		if len(h) != 2 {
			return nil, reason.Field(fmt.Sprintf("%s.headers[%d]", path, i), fmt.Sprintf("must be a name and a value, has %d elements", len(h)))
		}
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
	out := recordJSON{Seq: &r.Seq, Timestamp: &r.Timestamp, Headers: make([][]string, 0, len(r.GetHeaders()))}
	if !plain {
		out.Encoding = base64Encoding
		put = base64.StdEncoding.EncodeToString
	}
	out.Body = put(r.GetBody())
	for _, h := range r.GetHeaders() {
		out.Headers = append(out.Headers, []string{put(h.GetName()), put(h.GetValue())})
	}
	return out
}
