package gateway

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// verifiers is an index of buckets and streams, and a reader that verifies them.
type verifiers struct {
	indexpb.IndexServiceClient
	readerpb.ReaderServiceClient

	streams map[string][]string // by bucket
	fail    map[string]error    // by stream, or "objects"
	asked   []string
}

func (v *verifiers) ListBuckets(context.Context, *indexpb.ListBucketsRequest, ...grpc.CallOption) (*indexpb.ListBucketsResponse, error) {
	out := &indexpb.ListBucketsResponse{}
	for _, b := range slices.Sorted(func(yield func(string) bool) {
		for b := range v.streams {
			if !yield(b) {
				return
			}
		}
	}) {
		out.Buckets = append(out.Buckets, &indexpb.BucketRecord{Name: b})
	}
	return out, nil
}

// ListStreams returns one stream per page.
func (v *verifiers) ListStreams(_ context.Context, r *indexpb.ListStreamsRequest, _ ...grpc.CallOption) (*indexpb.ListStreamsResponse, error) {
	for i, name := range v.streams[r.GetBucket()] {
		if name > r.GetStartAfter() {
			return &indexpb.ListStreamsResponse{Streams: []*indexpb.StreamDescriptor{{Name: name}}, HasMore: i+1 < len(v.streams[r.GetBucket()])}, nil
		}
	}
	return &indexpb.ListStreamsResponse{}, nil
}

// reports are the messages of a verification, and how it ends.
type reports[T any] struct {
	grpc.ClientStream
	messages []*T
	end      error
}

func (r *reports[T]) Recv() (*T, error) {
	if len(r.messages) == 0 {
		return nil, r.end
	}
	m := r.messages[0]
	r.messages = r.messages[1:]
	return m, nil
}

func (v *verifiers) ends(what string) error {
	v.asked = append(v.asked, what)
	if err := v.fail[what]; err != nil {
		return err
	}
	return io.EOF
}

func (v *verifiers) VerifyStream(_ context.Context, r *readerpb.VerifyStreamRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[readerpb.VerifyStreamResponse], error) {
	p := &novapb.VerifyResponse{Bucket: r.GetBucket(), Stream: r.GetStream(), Done: true}
	return &reports[readerpb.VerifyStreamResponse]{messages: []*readerpb.VerifyStreamResponse{{Progress: p}}, end: v.ends(r.GetStream())}, nil
}

func (v *verifiers) VerifyObjects(context.Context, *readerpb.VerifyObjectsRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[readerpb.VerifyObjectsResponse], error) {
	p := &novapb.VerifyResponse{Objects: 7, Findings: []*novapb.VerifyFinding{{Kind: "leak"}}}
	return &reports[readerpb.VerifyObjectsResponse]{messages: []*readerpb.VerifyObjectsResponse{{Progress: p}}, end: v.ends("objects")}, nil
}

type verifyCall struct {
	novapb.AdminService_VerifyServer
	ctx context.Context
	got []*novapb.VerifyResponse
}

func (c *verifyCall) Context() context.Context { return c.ctx }

func (c *verifyCall) Send(m *novapb.VerifyResponse) error {
	c.got = append(c.got, m)
	return nil
}

// A stream, a bucket's streams, or everything: with all, what belongs to no stream
// is verified too. One stream that cannot be read ends nothing; objects that cannot
// be listed are an error, since their verification would say that nothing is wrong.
func TestVerifyCoversWhatIsAskedFor(t *testing.T) {
	down := reason.New(codes.Unavailable, reason.StorageDown, "down")
	for _, c := range []struct {
		name  string
		req   *novapb.VerifyRequest
		fail  map[string]error
		asked []string
		found []string
		code  codes.Code
	}{
		{"one stream", &novapb.VerifyRequest{Bucket: "a", Stream: "x"}, nil, []string{"x"}, nil, codes.OK},
		{"a bucket", &novapb.VerifyRequest{Bucket: "a"}, nil, []string{"x", "y"}, nil, codes.OK},
		{"all", &novapb.VerifyRequest{All: true}, nil, []string{"x", "y", "z", "objects"}, []string{"leak"}, codes.OK},
		{"a stream that cannot be read", &novapb.VerifyRequest{All: true}, map[string]error{"x": down}, []string{"x", "y", "z", "objects"}, []string{"unreadable", "leak"}, codes.OK},
		{"a stream that was deleted", &novapb.VerifyRequest{Bucket: "a"}, map[string]error{"x": reason.New(codes.NotFound, reason.StreamNotFound, "gone")}, []string{"x", "y"}, nil, codes.OK},
		{"objects that cannot be listed", &novapb.VerifyRequest{All: true}, map[string]error{"objects": down}, []string{"x", "y", "z", "objects"}, []string{"leak"}, codes.Unavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := &verifiers{streams: map[string][]string{"a": {"x", "y"}, "b": {"z"}}, fail: c.fail}
			s := &Service{cfg: Config{Patience: time.Minute}, index: v, readers: v, log: slog.New(slog.DiscardHandler), running: t.Context()}
			call := &verifyCall{ctx: t.Context()}
			err := s.Verify(c.req, call)
			if reason.Code(err) != c.code || !slices.Equal(v.asked, c.asked) {
				t.Errorf("%v after asking %v", err, v.asked)
			}
			var found []string
			for _, m := range call.got {
				for _, f := range m.GetFindings() {
					found = append(found, f.GetKind())
				}
			}
			if fmt.Sprint(found) != fmt.Sprint(c.found) {
				t.Errorf("found %v", found)
			}
		})
	}
}
