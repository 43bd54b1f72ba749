package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// lists is an index that is listed: markers of one queue, and streams by bucket. An
// empty name among those leads nowhere, and is removed by the list that meets it.
type lists struct {
	indexpb.IndexServiceClient

	queue   string
	due     []*indexpb.Due
	streams map[string][]string
	most    int // markers in one page
	page    int // streams and buckets in one page
}

func (l *lists) ListDue(_ context.Context, req *indexpb.ListDueRequest, _ ...grpc.CallOption) (*indexpb.ListDueResponse, error) {
	out := &indexpb.ListDueResponse{}
	for _, d := range l.due {
		behind := req.GetAfterDueId() == "" || d.GetAt() > req.GetAfterAt() || d.GetAt() == req.GetAfterAt() && d.GetDueId() > req.GetAfterDueId()
		switch {
		case req.GetQueue() != l.queue || !behind || d.GetAt() > req.GetUntil():
		case len(out.GetDue()) == int(req.GetLimit()):
			out.HasMore = true
		default:
			out.Due = append(out.Due, &indexpb.VersionedDue{Due: d, Version: 7})
		}
	}
	l.most = max(l.most, len(out.GetDue()))
	return out, nil
}

func (l *lists) ListBuckets(_ context.Context, req *indexpb.ListBucketsRequest, _ ...grpc.CallOption) (*indexpb.ListBucketsResponse, error) {
	out := &indexpb.ListBucketsResponse{}
	for _, b := range []string{"a", "b", "c", "d"} {
		switch {
		case b <= req.GetStartAfter():
		case len(out.GetBuckets()) == l.page:
			out.HasMore = true
		default:
			out.Buckets = append(out.Buckets, &indexpb.BucketRecord{Name: b})
		}
	}
	return out, nil
}

func (l *lists) ListStreams(_ context.Context, req *indexpb.ListStreamsRequest, _ ...grpc.CallOption) (*indexpb.ListStreamsResponse, error) {
	all, ok := l.streams[req.GetBucket()]
	if !ok {
		return nil, reason.New(codes.NotFound, reason.BucketNotFound, "gone")
	}
	out := &indexpb.ListStreamsResponse{}
	met := 0
	for i, name := range all {
		switch {
		case name != "" && name <= req.GetStartAfter():
		case met == l.page:
			out.HasMore = true
		case name == "":
			met++
			l.streams[req.GetBucket()] = slices.Delete(slices.Clone(all), i, i+1)
		default:
			met++
			out.Streams = append(out.Streams, &indexpb.StreamDescriptor{Bucket: req.GetBucket(), Name: name})
		}
	}
	return out, nil
}

// Every marker that is due comes once, in pages that fit into a message: those of
// unref are large.
func TestEachDueListsByPages(t *testing.T) {
	for queue, most := range map[string]int{"unref": 8, "dead-unref": 8, "settled": 1000, "dead-settled": 1000} {
		l := &lists{queue: queue}
		var want []string
		for i := range 2500 {
			d := &indexpb.Due{At: int64(i / 3), DueId: fmt.Sprintf("%04d", i)}
			if l.due = append(l.due, d); d.GetAt() <= 800 {
				want = append(want, d.GetDueId())
			}
		}
		var got []string
		err := New(l).EachDue(t.Context(), queue, time.UnixMilli(800), func(m Marker) (bool, error) {
			got = append(got, m.Due.GetDueId())
			return m.Version == 7, nil
		})
		if err != nil || !slices.Equal(got, want) || l.most != most {
			t.Errorf("%s: %d markers, want %d, %d at once, %v", queue, len(got), len(want), l.most, err)
		}
		// It ends when it is told to.
		n, enough := 0, errors.New("enough")
		if err := New(l).EachDue(t.Context(), queue, time.UnixMilli(800), func(Marker) (bool, error) { n++; return n < 10, nil }); err != nil || n != 10 {
			t.Errorf("%s: it ended after %d, %v", queue, n, err)
		}
		if err := New(l).EachDue(t.Context(), queue, time.UnixMilli(800), func(Marker) (bool, error) { return true, enough }); !errors.Is(err, enough) {
			t.Errorf("%s: %v", queue, err)
		}
	}
}

// Every stream of every bucket comes once, by pages of any size. A bucket that is gone
// by then, and names that lead nowhere, end nothing.
func TestEachStreamGoesThroughAllBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for page := 1; page < 6; page++ {
			l := &lists{page: page, streams: map[string][]string{"a": {"1", "2", "3"}, "b": {}, "d": {"", "", "4", "", "5"}}}
			var got []string
			err := New(l).EachStream(t.Context(), func(d *indexpb.StreamDescriptor) error {
				got = append(got, d.GetBucket()+d.GetName())
				return nil
			})
			slices.Sort(got)
			if want := []string{"a1", "a2", "a3", "d4", "d5"}; err != nil || !slices.Equal(slices.Compact(got), want) {
				t.Errorf("by %d: %v, want %v, %v", page, got, want, err)
			}
		}
		enough := errors.New("enough")
		l := &lists{page: 5, streams: map[string][]string{"a": {"1"}}}
		if err := New(l).EachStream(t.Context(), func(*indexpb.StreamDescriptor) error { return enough }); !errors.Is(err, enough) {
			t.Error(err)
		}
	})
}

// A change that another comes before, again and again, or that is made of reads that
// stay old, is tried again ever more slowly, up to a bound, and ends with its context.
func TestContendedChangesPause(t *testing.T) {
	for name, change := range map[string]func(context.Context, *Client) error{
		"a head": func(ctx context.Context, c *Client) error { _, _, err := c.BumpHead(ctx, stream.NewID()); return err },
		"a head that is opened": func(ctx context.Context, c *Client) error {
			_, err := c.TouchHead(ctx, stream.NewID(), 3)
			return err
		},
		"a broken head": func(ctx context.Context, c *Client) error { return c.DeleteBrokenHead(ctx, stream.NewID()) },
		"a settled object": func(ctx context.Context, c *Client) error {
			_, _, err := c.UpdateSettled(ctx, "o", func(*indexpb.SettledObject) (bool, error) { return true, nil })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := &contended{head: &indexpb.Head{}, object: &indexpb.SettledObject{}, version: 5, others: 1 << 30}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if err := change(ctx, New(x)); reason.Code(err) != codes.DeadlineExceeded {
					t.Errorf("%v", err)
				}
				if x.asks < 40 || x.asks > 200 {
					t.Errorf("it was tried %d times in 10 s", x.asks)
				}
				// A few that came before cost next to nothing.
				x.others = 3
				began := time.Now()
				if err := change(t.Context(), New(x)); err != nil || time.Since(began) > 20*time.Millisecond {
					t.Errorf("%v after %v", err, time.Since(began))
				}
			})
		})
	}
}
