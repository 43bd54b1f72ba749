package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// setField sets one field of a message; nil clears it.
func setField(t *testing.T, m protoreflect.Message, path string, value any) {
	t.Helper()
	name, rest, deeper := strings.Cut(path, ".")
	name, element := strings.CutSuffix(name, "[0]")
	fd := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	switch {
	case fd == nil:
		t.Fatalf("%s has no field %s", m.Descriptor().FullName(), name)
	case deeper && element:
		setField(t, m.Mutable(fd).List().Get(0).Message(), rest, value)
	case deeper:
		setField(t, m.Mutable(fd).Message(), rest, value)
	case value == nil:
		m.Clear(fd)
	case element:
		m.Mutable(fd).List().Set(0, protoreflect.ValueOf(value))
	case fd.IsList():
		list := m.NewField(fd).List()
		switch v := value.(type) {
		case []*novapb.AppendRecord:
			for _, r := range v {
				list.Append(protoreflect.ValueOf(r.ProtoReflect()))
			}
		case []*novapb.Header:
			for _, h := range v {
				list.Append(protoreflect.ValueOf(h.ProtoReflect()))
			}
		case []string:
			for _, s := range v {
				list.Append(protoreflect.ValueOf(s))
			}
		default:
			t.Fatalf("%s: cannot set a list of %T", path, value)
		}
		m.Set(fd, protoreflect.ValueOf(list))
	default:
		m.Set(fd, scalar(fd, value))
	}
}

// scalar makes an int fit the field.
func scalar(fd protoreflect.FieldDescriptor, value any) protoreflect.Value {
	if msg, ok := value.(proto.Message); ok {
		return protoreflect.ValueOf(msg.ProtoReflect())
	}
	n, ok := value.(int)
	if !ok {
		return protoreflect.ValueOf(value)
	}
	switch fd.Kind() {
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOf(uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOf(uint64(n))
	case protoreflect.EnumKind:
		return protoreflect.ValueOf(protoreflect.EnumNumber(n))
	default:
		return protoreflect.ValueOf(int64(n))
	}
}

// call sends a request and returns how the call ended.
func (w *fieldWorld) call(ctx context.Context, md protoreflect.MethodDescriptor, at target, req proto.Message) error {
	if msg, ok := req.(*novapb.AppendSessionRequest); ok {
		return w.callSession(ctx, at, msg)
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(md.Output().FullName())
	if err != nil {
		return err
	}
	name := fmt.Sprintf("/%s/%s", md.Parent().FullName(), md.Name())
	if !md.IsStreamingServer() {
		return w.conn.Invoke(ctx, name, req, kind.New().Interface())
	}
	up, err := w.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name)
	if err != nil {
		return err
	}
	if err := errors.Join(up.SendMsg(req), up.CloseSend()); err != nil {
		return err
	}
	for {
		if err := up.RecvMsg(kind.New().Interface()); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// callSession sends one message of a session, after a good open if it is a
// batch. A failure that a batch is answered with must be that of the call.
func (w *fieldWorld) callSession(ctx context.Context, at target, msg *novapb.AppendSessionRequest) error {
	ses, err := w.appends.AppendSession(ctx)
	if err != nil {
		return err
	}
	all := []*novapb.AppendSessionRequest{msg}
	if msg.GetOpen() == nil {
		open := &novapb.AppendSessionOpen{Bucket: at.bucket, Stream: at.stream, ProducerId: "p"}
		all = []*novapb.AppendSessionRequest{{Message: &novapb.AppendSessionRequest_Open{Open: open}}, msg}
	} else {
		all = append(all, batch(&novapb.AppendSessionBatch{Records: records("x")}))
	}
	for _, m := range all {
		if err := ses.Send(m); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	_ = ses.CloseSend()
	var failure *novapb.AppendSessionFailure
	for {
		res, err := ses.Recv()
		if errors.Is(err, io.EOF) && failure == nil {
			return nil
		}
		if err != nil {
			if failure != nil && (codes.Code(failure.GetCode()) != status.Code(err) || failure.GetOutcome() != novapb.Outcome_OUTCOME_NOT_COMMITTED) {
				return fmt.Errorf("the batch was answered %v, the call with %w", failure, err)
			}
			return err
		}
		if f := res.GetFailure(); f != nil && failure == nil {
			failure = f
		}
	}
}
