package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// methodFields is what is known of one RPC's request.
type methodFields struct {
	// base is a good request to a target; of a session it is one message, which
	// the path of the field under test picks.
	base func(at target, path string) proto.Message
	// fields are the request's, by path.
	fields map[string]field
	// creates says that the target does not exist before.
	creates bool
	// missing is the feature that the RPC answers UNIMPLEMENTED with.
	missing string
	// absent is the reason of the NOT_FOUND that a good request gets, since what
	// it names is not there.
	absent reason.Reason
	// verb and path are the HTTP form; verb "": there is none.
	verb, path string
}

// field is what is known of one field: values that are refused, or the reason
// why there are none.
type field struct {
	bad  []badValue
	good []any // limits that are just kept; func(n int) any makes them unique
	free string
}

// badValue is a value that one field must not have.
type badValue struct {
	what  string
	value any    // nil: the field is absent
	limit string // what the refusal must say, such as the limit
	// field is the path that the refusal names, where it is not the field's.
	field string
	// code and reason are of values that are refused for what is stored, not for
	// their form; code 0 is INVALID_ARGUMENT.
	code   codes.Code
	reason reason.Reason
	// path says that the value has no HTTP form: it stands in the path.
	path bool
}

// target is the stream that a request is about.
type target struct{ bucket, stream, id string }

// Every field of every public request refuses bad values, naming the field and
// the limit, and nothing changes; every limit may be reached. A field without a
// row here fails the test, and so a new one is noticed.
func TestEveryFieldOfEveryRequest(t *testing.T) {
	methods := publicMethods(t)
	t.Run("complete", func(t *testing.T) { everyFieldHasARow(t, methods) })
	// Where the bytes end up makes no difference; who is asked does.
	onShapes(t, func(t *testing.T, d deployment, c *client) {
		t.Cleanup(http.DefaultClient.CloseIdleConnections)
		w := &fieldWorld{client: c, http: "http://" + d.http()}
		for name, m := range fieldTable {
			md := methods[name]
			if md == nil {
				continue // told above
			}
			for path, f := range m.fields {
				for _, b := range f.bad {
					t.Run(fmt.Sprintf("refused/%s/%s/%s", md.Name(), path, b.what), func(t *testing.T) { w.refused(t, md, m, path, b) })
				}
			}
		}
		for name, m := range fieldTable {
			md := methods[name]
			if md == nil {
				continue
			}
			t.Run("accepted/"+string(md.Name()), func(t *testing.T) { w.accepted(t, md, m, "", nil) })
			for path, f := range m.fields {
				for i, v := range f.good {
					t.Run(fmt.Sprintf("accepted/%s/%s/%d", md.Name(), path, i), func(t *testing.T) { w.accepted(t, md, m, path, v) })
				}
			}
		}
	}, "memory", "split")
}

// publicMethods are the RPCs of nova.v1 by service and name.
func publicMethods(t *testing.T) map[string]protoreflect.MethodDescriptor {
	t.Helper()
	out := map[string]protoreflect.MethodDescriptor{}
	protoregistry.GlobalFiles.RangeFilesByPackage("nova.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for k := range s.Methods().Len() {
				out[fmt.Sprintf("%s/%s", s.Name(), s.Methods().Get(k).Name())] = s.Methods().Get(k)
			}
		}
		return true
	})
	if len(out) < 25 {
		t.Fatalf("found only %d methods", len(out))
	}
	return out
}

// everyFieldHasARow compares the table with the descriptors, in both directions.
func everyFieldHasARow(t *testing.T, methods map[string]protoreflect.MethodDescriptor) {
	for name, md := range methods {
		m, ok := fieldTable[name]
		if !ok {
			t.Errorf("%s: no rows", name)
			continue
		}
		known := map[string]bool{}
		for path, f := range m.fields {
			known[withoutIndexes(path)] = true
			if (len(f.bad) == 0) != (f.free != "") {
				t.Errorf("%s: %s needs either bad values or the reason why there are none", name, path)
			}
		}
		exists := map[string]bool{}
		walkFields(md.Input(), "", func(path string, fd protoreflect.FieldDescriptor) {
			exists[path] = true
			// Of a message its fields are looked at.
			if fd.Message() == nil || fd.IsList() {
				if !known[path] {
					t.Errorf("%s: no row for field %s", name, path)
				}
			}
		})
		for path := range known {
			if !exists[path] {
				t.Errorf("%s: there is no field %s", name, path)
			}
		}
	}
	for name := range fieldTable {
		if methods[name] == nil {
			t.Errorf("there is no method %s", name)
		}
	}
}

func walkFields(d protoreflect.MessageDescriptor, prefix string, visit func(string, protoreflect.FieldDescriptor)) {
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		path := prefix + string(fd.Name())
		visit(path, fd)
		if fd.Message() != nil {
			walkFields(fd.Message(), path+".", visit)
		}
	}
}

func withoutIndexes(path string) string { return strings.ReplaceAll(path, "[0]", "") }

// fieldWorld is the node under test.
type fieldWorld struct {
	*client
	http string
}

// made counts what the rows made: names must differ in a shared constellation.
var made int

// prepare creates a stream of three records.
func (w *fieldWorld) prepare(t *testing.T, at target) target {
	t.Helper()
	if _, err := w.buckets.CreateBucket(t.Context(), &novapb.CreateBucketRequest{Bucket: at.bucket}); err != nil {
		t.Fatal(err)
	}
	res, err := w.streams.CreateStream(t.Context(), &novapb.CreateStreamRequest{Bucket: at.bucket, Stream: at.stream})
	if err != nil {
		t.Fatal(err)
	}
	at.id = res.GetStream().GetStreamId()
	if _, err := w.appends.Append(t.Context(), &novapb.AppendRequest{Bucket: at.bucket, Stream: at.stream, Records: records("a", "b", "c")}); err != nil {
		t.Fatal(err)
	}
	return at
}

// refused sends one bad value and looks that nothing changed.
func (w *fieldWorld) refused(t *testing.T, md protoreflect.MethodDescriptor, m methodFields, path string, b badValue) {
	ctx := within(t, time.Minute)
	made++
	at := w.prepare(t, target{bucket: fmt.Sprintf("%s-bad-%d", bucket, made), stream: "s"})
	before := w.look(ctx, t, md, at)
	req := m.base(at, path)
	setField(t, req.ProtoReflect(), path, b.value)
	want := b
	if want.code == codes.OK {
		want.code = codes.InvalidArgument
		if want.field == "" {
			want.field = path
		}
	}
	err := w.call(ctx, md, at, req)
	wantRefusal(t, err, want)
	if strings.HasPrefix(string(md.FullName()), "nova.v1.AppendService.") && reason.OutcomeOf(err) != reason.NotCommitted {
		t.Errorf("%v: outcome %q, want %q", err, reason.OutcomeOf(err), reason.NotCommitted)
	}
	if m.verb != "" && !b.path {
		w.refusedJSON(ctx, t, m, req, want)
	}
	after := w.look(ctx, t, md, at)
	for i := range before {
		if !proto.Equal(before[i], after[i]) {
			t.Errorf("it was refused, but left\n%v\nwhere before was\n%v", after[i], before[i])
		}
	}
}

// wantRefusal checks code, reason, field and limit of an error.
func wantRefusal(t *testing.T, err error, want badValue) {
	t.Helper()
	if status.Code(err) != want.code || reason.Of(err) != want.reason {
		t.Fatalf("got %s %q (%v), want %s %q", status.Code(err), reason.Of(err), err, want.code, want.reason)
	}
	said := status.Convert(err).Message()
	if want.field != "" {
		field := ""
		for _, d := range status.Convert(err).Details() {
			if bad, ok := d.(*errdetails.BadRequest); ok && len(bad.GetFieldViolations()) == 1 {
				field, said = bad.GetFieldViolations()[0].GetField(), bad.GetFieldViolations()[0].GetDescription()
			}
		}
		if field != want.field {
			t.Errorf("%v: names field %q, want %q", err, field, want.field)
		}
	}
	if !strings.Contains(said, want.limit) {
		t.Errorf("%q does not say %q", said, want.limit)
	}
}

// look returns all that a bad request could have changed.
func (w *fieldWorld) look(ctx context.Context, t *testing.T, md protoreflect.MethodDescriptor, at target) []proto.Message {
	t.Helper()
	streams, err1 := w.streams.ListStreams(ctx, &novapb.ListStreamsRequest{Bucket: at.bucket})
	tail, err2 := w.reads.CheckTail(ctx, &novapb.CheckTailRequest{Bucket: at.bucket, Stream: at.stream})
	// Trims nothing, and fails if there is a fencing token.
	trim, err3 := w.appends.Trim(ctx, &novapb.TrimRequest{Bucket: at.bucket, Stream: at.stream, FencingTokenPresence: &novapb.TrimRequest_FencingToken{FencingToken: ""}})
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	out := []proto.Message{streams, tail, trim}
	if md.Parent().Name() != "BucketService" {
		return out
	}
	// There are many by now: only where one could have been made.
	buckets, err := w.buckets.ListBuckets(ctx, &novapb.ListBucketsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return append(out, buckets)
}

// accepted sends a request, with one field at its limit, to a stream of its own.
func (w *fieldWorld) accepted(t *testing.T, md protoreflect.MethodDescriptor, m methodFields, path string, value any) {
	made++
	if f, ok := value.(func(int) any); ok {
		value = f(made)
	}
	at := target{bucket: fmt.Sprintf("%s-good-%d", bucket, made), stream: "s"}
	if name, ok := value.(string); ok && name != "" && !m.creates {
		switch path {
		case "bucket", "open.bucket":
			at.bucket = name
		case "stream", "open.stream":
			at.stream = name
		}
	}
	at = w.prepare(t, at)
	req := m.base(at, path)
	if path != "" {
		setField(t, req.ProtoReflect(), path, value)
	}
	err := w.call(within(t, time.Minute), md, at, req)
	if m.absent != "" {
		wantErr(t, err, codes.NotFound, m.absent)
		return
	}
	if m.missing == "" {
		if err != nil {
			t.Fatalf("refused: %v", err)
		}
		return
	}
	wantErr(t, err, codes.Unimplemented, reason.Unimplemented)
	if got := reason.Meta(err, reason.KeyFeature); got != m.missing || !strings.Contains(status.Convert(err).Message(), m.missing) {
		t.Fatalf("%v: names feature %q, want %q", err, got, m.missing)
	}
}
