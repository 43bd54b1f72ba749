package wire

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// A batch of an append session is up to a thousand records, and most of the bytes
// that a client sends. It is read and written here without an object of its own
// for each record and body. Whatever is not plainly such a batch is left to
// Protobuf: other messages, fields that are not known, tags written at length,
// fields that are no text, and what is no message at all. The bytes and the
// meaning are Protobuf's.

// Tags: the number of the field, and whether it is a number or bytes.
const (
	kindNumber, kindBytes = 0, 2

	tagBatch = 2<<3 | kindBytes // of AppendSessionRequest

	tagRecord = 1<<3 | kindBytes // of AppendSessionBatch
	tagMatch  = 2<<3 | kindNumber
	tagToken  = 3<<3 | kindBytes
	tagSeq    = 4<<3 | kindNumber
	tagSeal   = 5<<3 | kindNumber

	tagTimestamp = 1<<3 | kindNumber // of AppendRecord
	tagHeader    = 2<<3 | kindBytes
	tagBody      = 3<<3 | kindBytes

	tagName  = 1<<3 | kindBytes // of Header
	tagValue = 2<<3 | kindBytes
)

// join copies data to memory of its own, which is not cleared before.
func join(data mem.BufferSlice) []byte {
	parts := make([][]byte, len(data))
	for i, b := range data {
		parts[i] = b.ReadOnlyData()
	}
	return bytes.Join(parts, nil)
}

// field is one of a message; number and value by its tag.
type field struct {
	tag    byte
	number uint64
	value  []byte
}

// cut takes the first field off a message; false: it is left to Protobuf.
func cut(b []byte) (f field, rest []byte, ok bool) {
	if len(b) == 0 || b[0] >= 0x80 {
		return f, nil, false
	}
	n, size := binary.Uvarint(b[1:])
	if size <= 0 {
		return f, nil, false
	}
	f.tag, f.number, rest = b[0], n, b[1+size:]
	switch f.tag & 7 {
	case kindNumber:
		return f, rest, true
	case kindBytes:
		if n > uint64(len(rest)) {
			return f, nil, false
		}
		f.value = rest[:n:n]
		return f, rest[n:], true
	}
	return f, nil, false
}

// readBatch makes m the batch that b is; false, with m empty, if it is left to
// Protobuf. Bodies and headers are parts of b, which must not change any more.
func readBatch(b []byte, m *novapb.AppendSessionRequest) bool {
	protobuf.Reset(m)
	f, rest, ok := cut(b)
	if !ok || f.tag != tagBatch || len(rest) > 0 {
		return false
	}
	count := 0
	for rest = f.value; len(rest) > 0; {
		var in field
		if in, rest, ok = cut(rest); !ok {
			return false
		}
		if in.tag == tagRecord {
			count++
		}
	}
	if count > stream.MaxBatchRecords {
		return false // it will be refused; the memory for it need not be in one piece
	}
	out := &novapb.AppendSessionBatch{}
	// One piece of memory for all.
	slab, records := make([]novapb.AppendRecord, count), make([]*novapb.AppendRecord, 0, count)
	for rest = f.value; len(rest) > 0; {
		var in field
		in, rest, _ = cut(rest)
		switch in.tag {
		case tagRecord:
			r := &slab[len(records)]
			if !readRecord(in.value, r) {
				return false
			}
			records = append(records, r)
		case tagMatch:
			out.SetMatchSeq(in.number)
		case tagToken:
			if !utf8.Valid(in.value) {
				return false
			}
			out.SetFencingToken(string(in.value))
		case tagSeq:
			out.SetBatchSeq(in.number)
		case tagSeal:
			out.SetSeal(in.number != 0)
		default:
			return false
		}
	}
	out.SetRecords(records)
	m.SetBatch(out)
	return true
}

func readRecord(b []byte, r *novapb.AppendRecord) bool {
	var headers []*novapb.Header
	for len(b) > 0 {
		var in field
		var ok bool
		if in, b, ok = cut(b); !ok {
			return false
		}
		switch in.tag {
		case tagTimestamp:
			r.SetTimestamp(int64(in.number))
		case tagHeader:
			h := &novapb.Header{}
			if !readHeader(in.value, h) {
				return false
			}
			headers = append(headers, h)
		case tagBody:
			r.SetBody(in.value)
		default:
			return false
		}
	}
	if headers != nil {
		r.SetHeaders(headers)
	}
	return true
}

func readHeader(b []byte, h *novapb.Header) bool {
	for len(b) > 0 {
		var in field
		var ok bool
		if in, b, ok = cut(b); !ok {
			return false
		}
		switch in.tag {
		case tagName:
			h.SetName(in.value)
		case tagValue:
			h.SetValue(in.value)
		default:
			return false
		}
	}
	return true
}

// batchSize returns how many bytes writeBatch makes of m, and of the batch in it;
// false: it is left to Protobuf.
func batchSize(m *novapb.AppendSessionRequest) (size, inner int, ok bool) {
	b := m.GetBatch()
	if b == nil || unknown(m) || unknown(b) || !utf8.ValidString(b.GetFencingToken()) {
		return 0, 0, false
	}
	for _, r := range b.GetRecords() {
		if r == nil || unknown(r) {
			return 0, 0, false
		}
		for _, h := range r.GetHeaders() {
			if h == nil || unknown(h) {
				return 0, 0, false
			}
		}
		inner += bytesSize(recordSize(r))
	}
	if b.HasMatchSeq() {
		inner += numberSize(b.GetMatchSeq())
	}
	if b.HasFencingToken() {
		inner += bytesSize(len(b.GetFencingToken()))
	}
	if n := b.GetBatchSeq(); n != 0 {
		inner += numberSize(n)
	}
	if b.GetSeal() {
		inner += numberSize(1)
	}
	return bytesSize(inner), inner, true
}

// unknown reports whether a message has fields that this version does not know:
// they are handed on.
func unknown(m protobuf.Message) bool { return len(m.ProtoReflect().GetUnknown()) > 0 }

func recordSize(r *novapb.AppendRecord) int {
	size := 0
	if r.HasTimestamp() {
		size += numberSize(uint64(r.GetTimestamp()))
	}
	for _, h := range r.GetHeaders() {
		size += bytesSize(headerSize(h))
	}
	if n := len(r.GetBody()); n > 0 {
		size += bytesSize(n)
	}
	return size
}

func headerSize(h *novapb.Header) int {
	size := 0
	if n := len(h.GetName()); n > 0 {
		size += bytesSize(n)
	}
	if n := len(h.GetValue()); n > 0 {
		size += bytesSize(n)
	}
	return size
}

// numberSize and bytesSize are the sizes of fields, their tags included.
func numberSize(n uint64) int { return 1 + (bits.Len64(n|1)+6)/7 }
func bytesSize(n int) int     { return numberSize(uint64(n)) + n }

// writeBatch appends m, of which batchSize has told the inner size.
func writeBatch(dst []byte, m *novapb.AppendSessionRequest, inner int) []byte {
	b := m.GetBatch()
	dst = appendNumber(dst, tagBatch, uint64(inner))
	for _, r := range b.GetRecords() {
		dst = appendNumber(dst, tagRecord, uint64(recordSize(r)))
		if r.HasTimestamp() {
			dst = appendNumber(dst, tagTimestamp, uint64(r.GetTimestamp()))
		}
		for _, h := range r.GetHeaders() {
			dst = appendNumber(dst, tagHeader, uint64(headerSize(h)))
			dst = appendBytes(dst, tagName, h.GetName())
			dst = appendBytes(dst, tagValue, h.GetValue())
		}
		dst = appendBytes(dst, tagBody, r.GetBody())
	}
	if b.HasMatchSeq() {
		dst = appendNumber(dst, tagMatch, b.GetMatchSeq())
	}
	if b.HasFencingToken() {
		dst = append(appendNumber(dst, tagToken, uint64(len(b.GetFencingToken()))), b.GetFencingToken()...)
	}
	if n := b.GetBatchSeq(); n != 0 {
		dst = appendNumber(dst, tagSeq, n)
	}
	if b.GetSeal() {
		dst = appendNumber(dst, tagSeal, 1)
	}
	return dst
}

// appendNumber appends a number, or the length of bytes that follow.
func appendNumber(dst []byte, tag byte, n uint64) []byte {
	return binary.AppendUvarint(append(dst, tag), n)
}

// appendBytes appends bytes that are absent when there are none.
func appendBytes(dst []byte, tag byte, b []byte) []byte {
	if len(b) == 0 {
		return dst
	}
	return append(appendNumber(dst, tag, uint64(len(b))), b...)
}
