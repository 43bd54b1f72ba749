package index

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// A bucket and the creations of streams in it agree by the bucket's row: a
// creation writes the stream's name and then changes the row, which proves that
// the bucket was ACTIVE when the name was there, before the name means a stream; a delete makes the row
// DELETING and then looks for names. Whichever change of the row comes second
// sees what the other did before.

// errAgain means that a compare-and-set was lost and is to be tried again.
var errAgain = reason.New(codes.Aborted, reason.VersionConflict, "lost to a concurrent change")

// retry runs f until it does something else than lose a compare-and-set.
func retry(ctx context.Context, f func() error) error {
	for {
		err := f()
		if !reason.Is(err, reason.VersionConflict) {
			return err
		}
		select {
		case <-ctx.Done():
			return reason.New(reason.Code(ctx.Err()), "", ctx.Err().Error())
		case <-time.After(time.Duration(1+rand.Int64N(10)) * time.Millisecond):
		}
	}
}

func (s *Service) bucket(ctx context.Context, name string) (*indexpb.BucketRecord, metastore.Version, error) {
	var r indexpb.BucketRecord
	v, err := s.read(ctx, bucketKey(name), &r)
	if reason.Is(err, reason.RowNotFound) {
		return nil, 0, reason.New(codes.NotFound, reason.BucketNotFound, "bucket "+name+" does not exist")
	}
	return &r, v, err
}

// active returns a bucket that streams may be created in.
func (s *Service) active(ctx context.Context, name string) (*indexpb.BucketRecord, error) {
	r, _, err := s.bucket(ctx, name)
	if err != nil {
		return nil, err
	}
	return r, notDeleting(r)
}

func notDeleting(r *indexpb.BucketRecord) error {
	if r.GetState() == novapb.BucketState_BUCKET_STATE_ACTIVE {
		return nil
	}
	return reason.New(codes.FailedPrecondition, reason.BucketDeleting, "bucket "+r.GetName()+" is being deleted")
}

// CreateBucket makes a bucket. It is one put-if-absent, so nothing half-made
// can be left.
func (s *Service) CreateBucket(ctx context.Context, req *indexpb.CreateBucketRequest) (*indexpb.CreateBucketResponse, error) {
	submitted := req.GetConfig()
	if submitted == nil {
		submitted = &novapb.BucketConfig{}
	}
	if err := available(submitted.GetDefaultStreamConfig()); err != nil {
		return nil, err
	}
	r := &indexpb.BucketRecord{
		Name: req.GetBucket(), BucketId: stream.NewID().String(), State: novapb.BucketState_BUCKET_STATE_ACTIVE,
		CreatedAt: s.now().UnixMilli(), Config: bucketDefaults(submitted), Submitted: submitted, RequestToken: req.GetRequestToken(),
		Attempt: stream.NewAttemptID().String(),
	}
	for {
		_, err := s.put(ctx, bucketKey(r.GetName()), r, metastore.Absent)
		if err == nil {
			return &indexpb.CreateBucketResponse{Bucket: r}, nil
		}
		if !reason.Is(err, reason.VersionConflict) {
			return nil, err
		}
		found, _, err := s.bucket(ctx, r.GetName())
		if reason.Is(err, reason.BucketNotFound) {
			continue // deleted since
		}
		if err != nil {
			return nil, err
		}
		if err := notDeleting(found); err != nil {
			return nil, err
		}
		if !sameRequest(found.GetRequestToken(), r.GetRequestToken(), found.GetSubmitted(), submitted) {
			return nil, reason.New(codes.AlreadyExists, reason.BucketExists, "bucket "+r.GetName()+" exists, made by another request or with other settings")
		}
		return &indexpb.CreateBucketResponse{Bucket: found}, nil
	}
}

// sameRequest: a retry has the token of the first request and its settings;
// without a token, equal settings are enough.
func sameRequest(had, has string, first, again proto.Message) bool {
	return (has == "" || has == had) && proto.Equal(first, again)
}

// GetBucket returns a bucket.
func (s *Service) GetBucket(ctx context.Context, req *indexpb.GetBucketRequest) (*indexpb.GetBucketResponse, error) {
	r, _, err := s.bucket(ctx, req.GetBucket())
	if err != nil {
		return nil, err
	}
	return &indexpb.GetBucketResponse{Bucket: r}, nil
}

// ListBuckets returns a page of buckets.
func (s *Service) ListBuckets(ctx context.Context, req *indexpb.ListBucketsRequest) (*indexpb.ListBucketsResponse, error) {
	out := &indexpb.ListBucketsResponse{}
	prefix, startAfter := bucketBound(req.GetPrefix()), bucketBound(req.GetStartAfter())
	if prefix != req.GetPrefix() {
		return out, nil // no bucket's name begins so
	}
	start, end := nameRange("bucket/", prefix, startAfter)
	more, err := list(ctx, s, partBuckets, start, end, req.GetLimit(),
		func() *indexpb.BucketRecord { return &indexpb.BucketRecord{} },
		func(r *indexpb.BucketRecord, _ metastore.Version) { out.Buckets = append(out.Buckets, r) })
	out.HasMore = more
	return out, err
}

// bucketBound returns a text that every bucket's name is as far behind or before
// as s, and that a key may hold: of s up to the first byte that is in no name,
// that byte replaced by one of its place between '-', the digits and the letters.
func bucketBound(s string) string {
	for i := range len(s) {
		switch c := s[i]; {
		case c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z':
		case c < '-':
			return s[:i]
		case c < '0':
			return s[:i] + "."
		case c < 'a':
			return s[:i] + ":"
		default:
			return s[:i] + after
		}
	}
	return s
}

// nameRange is the range of the names with a prefix that follow another name.
func nameRange(family, prefix, startAfter string) (start, end string) {
	start, end = family+prefix, family+prefix+after
	if next := family + startAfter + "\x20"; startAfter != "" && next > start {
		start = next
	}
	return start, max(start, end)
}

// UpdateBucket changes the settings that are present.
func (s *Service) UpdateBucket(ctx context.Context, req *indexpb.UpdateBucketRequest) (*indexpb.UpdateBucketResponse, error) {
	if err := available(req.GetConfig().GetDefaultStreamConfig()); err != nil {
		return nil, err
	}
	attempt := stream.NewAttemptID().String()
	var out *indexpb.BucketRecord
	err := retry(ctx, func() error {
		r, v, err := s.bucket(ctx, req.GetBucket())
		if err != nil {
			return err
		}
		if err := notDeleting(r); err != nil {
			return err
		}
		mergeBucket(r.GetConfig(), req.GetConfig())
		r.Attempt, out = attempt, r
		_, err = s.put(ctx, bucketKey(r.GetName()), r, v)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &indexpb.UpdateBucketResponse{Bucket: out}, nil
}

// QueueBucket holds the markers of forced deletes.
const QueueBucket = "bucket"

// BeginDeleteBucket marks a bucket DELETING. With force a marker is armed
// first: if the caller dies, the reaper deletes the streams and finishes.
func (s *Service) BeginDeleteBucket(ctx context.Context, req *indexpb.BeginDeleteBucketRequest) (*indexpb.BeginDeleteBucketResponse, error) {
	attempt := stream.NewAttemptID().String()
	var out *indexpb.BucketRecord
	err := retry(ctx, func() error {
		r, v, err := s.bucket(ctx, req.GetBucket())
		if err != nil {
			return err
		}
		out = r
		if req.GetForce() {
			// Armed anew after each look at the row: the reaper drops a marker
			// whose bucket is ACTIVE, and changes the row before it does.
			due := &indexpb.Due{
				DueId: stream.NewID().String(), Queue: QueueBucket, At: s.now().Add(s.cfg.OrphanAfter).UnixMilli(),
				Bucket: r.GetName(), BucketId: r.GetBucketId(), Attempt: attempt,
			}
			if _, err := s.put(ctx, dueKey(due.GetQueue(), due.GetAt(), due.GetDueId()), due, metastore.Absent); err != nil {
				return err
			}
		}
		if r.GetState() == novapb.BucketState_BUCKET_STATE_DELETING {
			return nil
		}
		r.State, r.Attempt = novapb.BucketState_BUCKET_STATE_DELETING, attempt
		_, err = s.put(ctx, bucketKey(r.GetName()), r, v)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &indexpb.BeginDeleteBucketResponse{Bucket: out}, nil
}

// FinishDeleteBucket removes a DELETING bucket that has no streams. With
// streams it becomes ACTIVE again, unless forced: then it stays DELETING.
func (s *Service) FinishDeleteBucket(ctx context.Context, req *indexpb.FinishDeleteBucketRequest) (*indexpb.FinishDeleteBucketResponse, error) {
	attempt := stream.NewAttemptID().String()
	notEmpty := false
	err := retry(ctx, func() error {
		r, v, err := s.bucket(ctx, req.GetBucket())
		if reason.Is(err, reason.BucketNotFound) || err == nil && r.GetBucketId() != req.GetBucketId() {
			return nil // done before, perhaps the name is another bucket's already
		}
		if err != nil {
			return err
		}
		if r.GetState() != novapb.BucketState_BUCKET_STATE_DELETING {
			notEmpty = true // another delete found streams and reverted
			return nil
		}
		start, end := nameRange("name/"+r.GetName()+"/", "", "")
		rows, err := s.store.Range(ctx, partNamesBase+r.GetName(), start, end, 1)
		if err != nil {
			return storeError(err)
		}
		if len(rows) > 0 {
			var n indexpb.NameRecord
			if err := decode(rows[0].Path, rows[0].Value, &n); err != nil {
				return err
			}
			if isProbe(&n) {
				if err := s.remove(ctx, nameKey(n.GetBucket(), n.GetName()), rows[0].Version); err != nil {
					return err
				}
				return errAgain
			}
		}
		if notEmpty = len(rows) > 0; !notEmpty {
			// The version ties the look to the removal: a creation in between
			// changed the row.
			err := s.store.Delete(ctx, bucketKey(r.GetName()), v)
			return storeError(err)
		}
		if req.GetForce() {
			return nil
		}
		r.State, r.Attempt = novapb.BucketState_BUCKET_STATE_ACTIVE, attempt
		_, err = s.put(ctx, bucketKey(r.GetName()), r, v)
		return err
	})
	if err != nil && !reason.Is(err, reason.RowNotFound) {
		return nil, err
	}
	if notEmpty {
		return nil, reason.New(codes.FailedPrecondition, reason.BucketNotEmpty, "bucket "+req.GetBucket()+" has streams; delete them first, or force")
	}
	return &indexpb.FinishDeleteBucketResponse{}, nil
}

// touch is one change of a bucket's row on behalf of the creations that wait
// for it. The creation that asked for it first makes it.
type touch struct {
	turn chan struct{} // closed when it may begin
	done chan struct{} // closed when err is valid
	err  error
	next *touch // what those who come after its beginning wait for
}

// proveActive changes the bucket's row, which proves that it was ACTIVE and the
// same bucket after the call began. Creations that come while a change is under
// way share the next one: the row must not become a bottleneck.
func (s *Service) proveActive(ctx context.Context, name, id string) error {
	key := name + "/" + id
	s.mu.Lock()
	running := s.touches[key]
	if running != nil && running.next != nil {
		t := running.next
		s.mu.Unlock()
		select {
		case <-t.done:
			return t.err
		case <-ctx.Done():
			return reason.New(reason.Code(ctx.Err()), "", ctx.Err().Error())
		}
	}
	t := &touch{turn: make(chan struct{}), done: make(chan struct{})}
	if running == nil {
		s.touches[key] = t
		close(t.turn)
	} else {
		// That change may have read the row before this call.
		running.next = t
	}
	s.mu.Unlock()
	// Others wait for this one, so it does not end with its caller; it takes no
	// longer than the change before and its own.
	<-t.turn
	t.err = s.changeBucket(context.WithoutCancel(ctx), name, id)
	s.mu.Lock()
	if t.next == nil {
		delete(s.touches, key)
	} else {
		s.touches[key] = t.next
		close(t.next.turn)
	}
	s.mu.Unlock()
	close(t.done)
	return t.err
}

func (s *Service) changeBucket(ctx context.Context, name, id string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	attempt := stream.NewAttemptID().String()
	return retry(ctx, func() error {
		r, v, err := s.bucket(ctx, name)
		if err != nil {
			return err
		}
		if r.GetBucketId() != id {
			return reason.New(codes.NotFound, reason.BucketNotFound, "bucket "+name+" was deleted and made again meanwhile")
		}
		if err := notDeleting(r); err != nil {
			return err
		}
		r.Creations++
		r.Attempt = attempt
		_, err = s.put(ctx, bucketKey(name), r, v)
		return err
	})
}
