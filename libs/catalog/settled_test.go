package catalog

import (
	"context"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// contended is an index with one head and one settled object. Before its next
// changes land, another's do; and the replies of the next are lost.
type contended struct {
	indexpb.IndexServiceClient

	head          *indexpb.Head
	object        *indexpb.SettledObject
	version       int64
	others, lose  int
	changes, asks int
}

var (
	errOther = reason.New(codes.Aborted, reason.VersionConflict, "another version")
	errLost  = reason.New(codes.Unavailable, reason.StorageDown, "lost")
)

// change is one compare-and-set, of what has an attempt.
func (c *contended) change(had, attempt string, expected int64, land func()) (int64, error) {
	c.asks++
	if had == attempt {
		return c.version, nil
	}
	if c.others > 0 {
		c.others--
		c.version++
	}
	if expected != c.version {
		return 0, errOther
	}
	c.version++
	c.changes++
	land()
	if c.lose > 0 {
		c.lose--
		return 0, errLost
	}
	return c.version, nil
}

func (c *contended) GetHead(_ context.Context, req *indexpb.GetHeadRequest, _ ...grpc.CallOption) (*indexpb.GetHeadResponse, error) {
	if c.head == nil {
		return nil, reason.New(codes.NotFound, reason.RowNotFound, "no head")
	}
	return &indexpb.GetHeadResponse{Head: c.head, Version: c.version}, nil
}

func (c *contended) PutHead(_ context.Context, req *indexpb.PutHeadRequest, _ ...grpc.CallOption) (*indexpb.PutHeadResponse, error) {
	v, err := c.change(c.head.GetAttempt(), req.GetHead().GetAttempt(), req.GetExpectedVersion(), func() { c.head = req.GetHead() })
	return &indexpb.PutHeadResponse{Version: v}, err
}

func (c *contended) GetSettledObject(context.Context, *indexpb.GetSettledObjectRequest, ...grpc.CallOption) (*indexpb.GetSettledObjectResponse, error) {
	return &indexpb.GetSettledObjectResponse{Object: c.object, Version: c.version}, nil
}

func (c *contended) PutSettledObject(_ context.Context, req *indexpb.PutSettledObjectRequest, _ ...grpc.CallOption) (*indexpb.PutSettledObjectResponse, error) {
	v, err := c.change(c.object.GetAttempt(), req.GetObject().GetAttempt(), req.GetExpectedVersion(), func() { c.object = req.GetObject() })
	return &indexpb.PutSettledObjectResponse{Version: v}, err
}

// A bump lands once, changes nothing else, and is not taken for done when another
// change came between: who read the head before must fail (I11).
func TestBumpHeadLandsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id := stream.NewID()
		for _, c := range []struct{ others, lose int }{{0, 0}, {3, 0}, {0, 2}, {2, 1}} {
			head := &indexpb.Head{StreamId: id.String(), Tail: 9, Refs: []*indexpb.Ref{{Object: "o", NextSeq: 9}}, Attempt: "before"}
			x := &contended{head: head, version: 5, others: c.others, lose: c.lose}
			h, v, err := New(x).BumpHead(t.Context(), id)
			if err != nil || x.changes != 1 || v != x.version || v != 6+int64(c.others) {
				t.Errorf("%v: version %d of %d, %d changes, %v", c, v, x.version, x.changes, err)
			}
			after := proto.CloneOf(x.head)
			if after.GetAttempt() == "before" || head.GetAttempt() != "before" {
				t.Errorf("%v: attempts %q and %q", c, head.GetAttempt(), after.GetAttempt())
			}
			after.Attempt = "before"
			if !proto.Equal(after, head) || !proto.Equal(h, head) {
				t.Errorf("%v: the bump changed the head to %v", c, after)
			}
		}
	})
	if _, _, err := New(&contended{}).BumpHead(t.Context(), stream.NewID()); !IsNotFound(err) {
		t.Errorf("no head: %v", err)
	}
}

// The row of a settled object is changed once, by what it is after the last
// conflict: bits that another cleared stay so (I11).
func TestUpdateSettledBeginsAgainAfterAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct{ others, lose int }{{0, 0}, {3, 0}, {0, 2}, {2, 1}} {
			x := &contended{object: &indexpb.SettledObject{Object: "o", Live: []byte{7}, Attempt: "before"}, version: 5, others: c.others, lose: c.lose}
			tries := 0
			r, v, err := New(x).UpdateSettled(t.Context(), "o", func(r *indexpb.SettledObject) (bool, error) {
				tries++
				r.Live[0] &^= 1
				return true, nil
			})
			if err != nil || r.GetLive()[0] != 6 || x.object.GetLive()[0] != 6 || v != x.version || x.changes != 1 || tries != 1+c.others {
				t.Errorf("%v: %v at %d, %d changes in %d tries, %v", c, r, v, x.changes, tries, err)
			}
			asks := x.asks
			if _, _, err := New(x).UpdateSettled(t.Context(), "o", func(*indexpb.SettledObject) (bool, error) { return false, nil }); err != nil || x.asks != asks {
				t.Errorf("nothing to change: %v, %d writes", err, x.asks-asks)
			}
		}
	})
}
