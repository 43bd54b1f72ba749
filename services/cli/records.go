package cli

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// format is how records look in a file or on a terminal.
type format string

const (
	formatLines format = "lines" // a record is a line; LF only separates
	formatJSON  format = "json"  // a JSON object per line
	formatRaw   format = "raw"   // a record is a whole file
)

func parseFormat(s string) (format, error) {
	switch f := format(s); f {
	case formatLines, formatJSON, formatRaw:
		return f, nil
	}
	return "", usagef("--format must be lines, json or raw, is %q", s)
}

// recordJSON is a record as JSON. Encoding "base64" says that body and headers
// are base64. A header is a name and a value. Seq is ignored when appending, so
// that what read printed can be appended.
type recordJSON struct {
	Seq       *uint64    `json:"seq,omitempty"`
	Timestamp *int64     `json:"timestamp,omitempty"`
	Headers   [][]string `json:"headers,omitempty"`
	Body      string     `json:"body"`
	Encoding  string     `json:"encoding,omitempty"`
}

// source yields the records of one input.
type source struct {
	name   string
	format format
	in     *bufio.Reader
	line   int
	done   bool
}

func newSource(name string, f format, in io.Reader) *source {
	const buffer = 256 << 10
	return &source{name: name, format: f, in: bufio.NewReaderSize(in, buffer)}
}

// errTooLong is a record above the limit.
var errTooLong = errors.New("too long")

// next returns the next record; io.EOF after the last.
func (s *source) next() (*novapb.AppendRecord, error) {
	if s.done {
		return nil, io.EOF
	}
	if s.format == formatRaw {
		s.done = true
		b, err := io.ReadAll(io.LimitReader(s.in, stream.MaxRecordBytes+1))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		if len(b) > stream.MaxRecordBytes {
			return nil, fmt.Errorf("%s: %w: a record is at most %d bytes", s.name, errTooLong, stream.MaxRecordBytes)
		}
		return &novapb.AppendRecord{Body: b}, nil
	}
	limit := stream.MaxRecordBytes
	if s.format == formatJSON {
		// Base64 and escapes make text longer than its record.
		limit = 8 * stream.MaxRecordBytes
	}
	s.line++
	line, err := s.readLine(limit)
	if errors.Is(err, io.EOF) {
		s.done = true
		if len(line) == 0 {
			return nil, io.EOF
		}
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s line %d: %w", s.name, s.line, err)
	}
	if s.format == formatLines {
		return &novapb.AppendRecord{Body: line}, nil
	}
	if len(bytes.TrimSpace(line)) == 0 {
		return s.next() // between objects, or after the last
	}
	r, err := parseRecord(line)
	if n := client.AppendSize(r); err == nil && n > stream.MaxRecordBytes {
		err = fmt.Errorf("%w: a record is at most %d bytes, is %d", errTooLong, stream.MaxRecordBytes, n)
	}
	if err != nil {
		return nil, fmt.Errorf("%s line %d: %w", s.name, s.line, err)
	}
	return r, nil
}

// readLine returns a line without its LF, a copy of its own; io.EOF with a last
// line that has none.
func (s *source) readLine(limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := s.in.ReadSlice('\n')
		end := err == nil
		if end {
			part = part[:len(part)-1]
		}
		if len(line)+len(part) > limit {
			return nil, fmt.Errorf("%w: a line is at most %d bytes in this format", errTooLong, limit)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			line = append(line, part...)
			continue
		}
		if line == nil {
			return bytes.Clone(part), err
		}
		return append(line, part...), err
	}
}

// ready reports whether the next record is read without waiting for input.
func (s *source) ready() bool {
	if s.format == formatRaw {
		return false
	}
	buffered, _ := s.in.Peek(s.in.Buffered()) // what is buffered can be peeked
	return bytes.IndexByte(buffered, '\n') >= 0
}

func parseRecord(line []byte) (*novapb.AppendRecord, error) {
	if !utf8.Valid(line) {
		return nil, errors.New(`not UTF-8; write such bytes with "encoding":"base64"`)
	}
	if loneSurrogate(line) {
		return nil, errors.New(`an escaped surrogate without its pair; write such bytes with "encoding":"base64"`)
	}
	if !bytes.HasPrefix(bytes.TrimSpace(line), []byte("{")) {
		return nil, errors.New("not a JSON object")
	}
	var in recordJSON
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	get := func(s string) ([]byte, error) { return []byte(s), nil }
	switch in.Encoding {
	case "":
	case "base64":
		get = base64.StdEncoding.DecodeString
	default:
		return nil, fmt.Errorf(`encoding must be "base64" or absent, is %q`, in.Encoding)
	}
	out := novapb.AppendRecord_builder{Timestamp: in.Timestamp}.Build()
	var err error
	if out.Body, err = get(in.Body); err != nil {
		return nil, fmt.Errorf("body: %w", err)
	}
	for _, h := range in.Headers {
		if len(h) != 2 {
			return nil, fmt.Errorf("headers: each is a name and a value, one has %d parts", len(h))
		}
		name, nerr := get(h[0])
		v, verr := get(h[1])
		if err := errors.Join(nerr, verr); err != nil {
			return nil, fmt.Errorf("headers: %w", err)
		}
		out.Headers = append(out.Headers, &novapb.Header{Name: name, Value: v})
	}
	return out, nil
}

// loneSurrogate finds a \uD800..\uDFFF escape that is not half of a pair: Go's
// decoder would put a replacement character in its place.
func loneSurrogate(b []byte) bool {
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\\')
		if i < 0 {
			return false
		}
		b = b[i:]
		unit, ok := escapedUnit(b)
		if !ok {
			b = b[min(2, len(b)):] // another escape, perhaps of a backslash
			continue
		}
		b = b[escapeLength:]
		if !utf16.IsSurrogate(unit) {
			continue
		}
		low, ok := escapedUnit(b)
		if !ok || utf16.DecodeRune(unit, low) == utf8.RuneError {
			return true
		}
		b = b[escapeLength:]
	}
	return false
}

const escapeLength = len(`\u0000`)

// escapedUnit returns the UTF-16 unit of a \u escape at the start of b.
func escapedUnit(b []byte) (rune, bool) {
	if len(b) < escapeLength || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b[2:escapeLength]), 16, 16)
	return rune(n), err == nil
}

// writeRecord writes a record in a format.
func writeRecord(w *bufio.Writer, f format, r *novapb.Record) error {
	switch f {
	case formatLines:
		if _, err := w.Write(r.GetBody()); err != nil {
			return err
		}
		return w.WriteByte('\n')
	case formatRaw:
		_, err := w.Write(r.GetBody())
		return err
	case formatJSON:
	}
	plain := utf8.Valid(r.GetBody())
	for _, h := range r.GetHeaders() {
		plain = plain && utf8.Valid(h.GetName()) && utf8.Valid(h.GetValue())
	}
	put := func(b []byte) string { return string(b) }
	out := recordJSON{Seq: &r.Seq, Timestamp: &r.Timestamp}
	if !plain {
		out.Encoding, put = "base64", base64.StdEncoding.EncodeToString
	}
	out.Body = put(r.GetBody())
	for _, h := range r.GetHeaders() {
		out.Headers = append(out.Headers, []string{put(h.GetName()), put(h.GetValue())})
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(out)
}

func number(what, s string) (uint64, error) {
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, usagef("%s must be a number from 0 on, is %q", what, s)
	}
	return v, nil
}

// parseTime takes RFC 3339, milliseconds since 1970, or a duration ago.
func parseTime(flag, s string, now time.Time) (int64, error) {
	if ms, err := strconv.ParseInt(s, 10, 64); err == nil {
		return ms, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t.UnixMilli(), nil
	}
	if d, err := config.ParseDuration(s); err == nil {
		return now.Add(-d).UnixMilli(), nil
	}
	return 0, usagef("%s must be RFC 3339, milliseconds since 1970, or how long ago (5m), is %q", flag, s)
}
