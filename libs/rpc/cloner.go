package rpc

import (
	"fmt"
	"reflect"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/rpc/wire"
)

// sharing hands messages over without copying what they hold: the receiver's
// message gets the fields of the sender's, and everything below is shared.
//
// The struct is not copied as a whole, because a message keeps its cached size
// and its type's information in it, and another goroutine may be writing those
// while it marshals the same message.
type sharing struct{ layouts sync.Map } // reflect.Type -> []int, nil: unknown layout

// Clone returns the message itself.
func (s *sharing) Clone(in any) (any, error) { return in, nil }

// Copy gives out the fields of in.
func (s *sharing) Copy(out, in any) error {
	in, taken := wire.Unwrap(in)
	defer taken()
	dst, ok := out.(proto.Message)
	src, also := in.(proto.Message)
	if !ok || !also {
		return fmt.Errorf("rpc: %T and %T are not both messages", out, in)
	}
	to, from := reflect.ValueOf(out), reflect.ValueOf(in)
	if to.Type() != from.Type() {
		return fmt.Errorf("rpc: a %T was sent where a %T is expected", in, out)
	}
	if from.IsNil() {
		return status.Errorf(codes.Internal, "rpc: a nil %T was sent", in)
	}
	to, from = to.Elem(), from.Elem()
	fields := s.layout(from.Type())
	if fields == nil {
		proto.Reset(dst)
		proto.Merge(dst, src)
		return nil
	}
	for _, i := range fields {
		to.Field(i).Set(from.Field(i))
	}
	unknown := src.ProtoReflect().GetUnknown()
	if r := dst.ProtoReflect(); len(unknown) > 0 || len(r.GetUnknown()) > 0 {
		r.SetUnknown(unknown)
	}
	return nil
}

// layout returns the fields that hold the content of a generated message. It
// is nil for one that keeps content elsewhere: extensions, the opaque API.
func (s *sharing) layout(t reflect.Type) []int {
	if l, ok := s.layouts.Load(t); ok {
		return l.([]int)
	}
	fields := []int{}
	for i := range t.NumField() {
		switch f := t.Field(i); {
		case f.IsExported():
			fields = append(fields, i)
		case f.Name == "state" || f.Name == "sizeCache" || f.Name == "unknownFields":
		default:
			fields = nil
		}
		if fields == nil {
			break
		}
	}
	s.layouts.Store(t, fields)
	return fields
}
