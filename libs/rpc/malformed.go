package rpc

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nova-stream/nova/libs/reason"
)

// A request that cannot be read (a string that is not UTF-8, bytes that are no
// message) is its caller's mistake. gRPC answers INTERNAL, which callers take for
// a failure of the server and try again, and has sent that before any code here
// is asked. So the codec of servers hands such a request on as an empty one with
// a mark in its unknown fields, which the innermost part of the chain refuses.

// readable is the codec of servers.
type readable struct{ encoding.CodecV2 }

// markField is the highest number that a field can have.
const markField protowire.Number = 1<<29 - 1

var mark = protowire.AppendTag(nil, markField, protowire.BytesType)

// Unmarshal fails for what is no message at all.
func (c readable) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	m, ok := v.(proto.Message)
	if err == nil || !ok {
		return err
	}
	path := notText(m.ProtoReflect().Descriptor(), data.Materialize(), maxNesting)
	proto.Reset(m)
	m.ProtoReflect().SetUnknown(protowire.AppendString(bytes.Clone(mark), path))
	return nil
}

// malformed returns INVALID_ARGUMENT for a request that could not be read, whose
// field it names if that is known. Nothing of it was done.
func malformed(req any) error {
	m, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	marked, ok := bytes.CutPrefix(m.ProtoReflect().GetUnknown(), mark)
	if !ok {
		return nil
	}
	path, n := protowire.ConsumeString(marked)
	if n < 0 || path == "" || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return reason.WithOutcome(status.Error(codes.InvalidArgument, "the request cannot be read: it is not a "+string(m.ProtoReflect().Descriptor().FullName())), reason.NotCommitted)
	}
	return reason.WithOutcome(reason.Field(path, "is not UTF-8"), reason.NotCommitted)
}

func malformedUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := malformed(req); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

// maxNesting is deeper than any request of ours.
const maxNesting = 16

// notText returns the path of a string that is not UTF-8, "" if there is none
// that can be found.
func notText(d protoreflect.MessageDescriptor, b []byte, depth int) string {
	seen := map[protowire.Number]int{}
	for len(b) > 0 && depth > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return ""
		}
		size := protowire.ConsumeFieldValue(num, typ, b[n:])
		if size < 0 {
			return ""
		}
		value := b[n : n+size]
		b = b[n+size:]
		f := d.Fields().ByNumber(num)
		if f == nil || typ != protowire.BytesType {
			continue
		}
		path := string(f.Name())
		if f.IsList() {
			path += "[" + strconv.Itoa(seen[num]) + "]"
			seen[num]++
		}
		text, _ := protowire.ConsumeBytes(value)
		switch {
		case f.Kind() == protoreflect.StringKind && !utf8.Valid(text):
			return path
		case f.Message() != nil:
			if inner := notText(f.Message(), text, depth-1); inner != "" {
				return path + "." + inner
			}
		}
	}
	return ""
}
