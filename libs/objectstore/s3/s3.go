package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/nova-stream/nova/libs/objectstore"
)

// Store is an objectstore.Store; make one with Open.
type Store struct {
	config      Config
	api         *s3.Client
	http        aws.HTTPClient
	credentials aws.CredentialsProvider
	reads       latencies
	running     sync.WaitGroup // attempts of hedged reads
	closed      atomic.Bool
}

var _ objectstore.Store = (*Store)(nil)

// deleteBatch is how many keys one DeleteObjects request takes.
const deleteBatch = 1000

// putBytesPerSecond is the slowest upload a put waits for.
const putBytesPerSecond = 256 << 10

func (s *Store) check(ctx context.Context, op string, keys ...string) error {
	for _, key := range keys {
		if err := objectstore.CheckKey(op, key); err != nil {
			return err
		}
	}
	return s.usable(ctx, op, strings.Join(keys[:min(len(keys), 1)], ""))
}

func (s *Store) usable(ctx context.Context, op, key string) error {
	if s.closed.Load() {
		return objectstore.Fail(op, key, objectstore.ErrPermanent, "the store is closed")
	}
	return objectstore.Expired(ctx, op, key)
}

func (s *Store) full(key string) *string { return aws.String(s.config.Prefix + key) }

// PutIfAbsent implements objectstore.Store. It is one attempt.
func (s *Store) PutIfAbsent(ctx context.Context, key string, body []byte) (objectstore.ETag, error) {
	return s.put(ctx, "PutIfAbsent", key, body, &s3.PutObjectInput{IfNoneMatch: aws.String("*")})
}

// PutIfMatch implements objectstore.Store. It is one attempt.
func (s *Store) PutIfMatch(ctx context.Context, key string, body []byte, etag objectstore.ETag) (objectstore.ETag, error) {
	const op = "PutIfMatch"
	if err := s.check(ctx, op, key); err != nil {
		return "", err
	}
	// An empty condition would not be sent, and a star matches anything.
	if etag == "" || etag == "*" {
		return "", objectstore.Fail(op, key, objectstore.ErrMismatch, "")
	}
	return s.put(ctx, op, key, body, &s3.PutObjectInput{IfMatch: aws.String(string(etag))})
}

func (s *Store) put(ctx context.Context, op, key string, body []byte, in *s3.PutObjectInput) (objectstore.ETag, error) {
	if err := s.check(ctx, op, key); err != nil {
		return "", err
	}
	a := begin(ctx, s.config.Silence+time.Duration(len(body))*time.Second/putBytesPerSecond)
	defer a.end()
	in.Bucket, in.Key = &s.config.Bucket, s.full(key)
	// The SDK reads no more of it once the call is over. It could be held up in
	// one write of all the bytes, so it is not shown that the reader can do that.
	in.Body, in.ContentLength = struct{ io.ReadSeeker }{bytes.NewReader(body)}, aws.Int64(int64(len(body)))
	out, err := s.api.PutObject(a.ctx, in)
	if err != nil {
		return "", s.judge(ctx, op, key, a.cause(err))
	}
	if aws.ToString(out.ETag) == "" {
		return "", objectstore.Fail(op, key, objectstore.ErrUnavailable, "the store answered without an ETag")
	}
	return objectstore.ETag(*out.ETag), nil
}

// Get implements objectstore.Store.
func (s *Store) Get(ctx context.Context, key string) (o objectstore.Object, err error) {
	const op = "Get"
	if err := s.check(ctx, op, key); err != nil {
		return o, err
	}
	err = s.again(ctx, func() error {
		o, err = s.get(ctx, op, key)
		return err
	})
	return o, err
}

func (s *Store) get(ctx context.Context, op, key string) (objectstore.Object, error) {
	got, err := s.open(ctx, op, key, nil)
	if err != nil {
		return objectstore.Object{}, err
	}
	defer got.close()
	return s.body(ctx, op, key, got)
}

// open asks for an object or a range of it.
func (s *Store) open(ctx context.Context, op, key string, header *string) (*answer, error) {
	return s.hedged(ctx, func(a *attempt) (*answer, error) {
		out, err := s.api.GetObject(a.ctx, &s3.GetObjectInput{Bucket: &s.config.Bucket, Key: s.full(key), Range: header})
		if err != nil {
			err = s.judge(ctx, op, key, a.cause(err))
			a.end()
			return nil, err
		}
		a.heard()
		return &answer{GetObjectOutput: out, attempt: a}, nil
	})
}

// body reads what the answer holds. Size is that of the body.
func (s *Store) body(ctx context.Context, op, key string, got *answer) (objectstore.Object, error) {
	if got.ContentLength == nil || *got.ContentLength < 0 {
		// Without it a cut connection may look like the end.
		return objectstore.Object{}, objectstore.Fail(op, key, objectstore.ErrPermanent, "the store answers without Content-Length: %s", s.advice(""))
	}
	body, err := got.attempt.readFull(got.Body, *got.ContentLength)
	if err != nil {
		return objectstore.Object{}, s.unanswered(ctx, op, key, err)
	}
	return objectstore.Object{Body: body, ETag: objectstore.ETag(aws.ToString(got.ETag)), Size: *got.ContentLength}, nil
}

// GetRange implements objectstore.Store.
func (s *Store) GetRange(ctx context.Context, key string, r objectstore.Range) (o objectstore.Object, err error) {
	const op = "GetRange"
	if err := r.Check(op, key); err != nil {
		return o, err
	}
	if err := s.check(ctx, op, key); err != nil {
		return o, err
	}
	err = s.again(ctx, func() error {
		o, err = s.getRange(ctx, op, key, r)
		return err
	})
	return o, err
}

// maxOffset is beyond every object (S3's limit is 50 TB) and within what
// servers parse.
const maxOffset = 1 << 60

// rangeHeader returns the Range header of r.
func rangeHeader(r objectstore.Range) string {
	switch {
	case r.Offset < 0:
		return "bytes=-" + strconv.FormatInt(-max(r.Offset, -maxOffset), 10)
	case r.Length == 0 || r.Length > math.MaxInt64-r.Offset:
		return fmt.Sprintf("bytes=%d-", r.Offset)
	}
	return fmt.Sprintf("bytes=%d-%d", r.Offset, r.Offset+r.Length-1)
}

func (s *Store) getRange(ctx context.Context, op, key string, r objectstore.Range) (objectstore.Object, error) {
	got, err := s.open(ctx, op, key, aws.String(rangeHeader(r)))
	if errors.Is(err, objectstore.ErrRange) && r.Offset < 0 {
		// Some servers refuse a suffix longer than the object. Then all of it,
		// which is less than was asked for; of an empty one it is ErrRange.
		return cutFromWhole(op, key, r, func() (objectstore.Object, error) { return s.get(ctx, op, key) })
	}
	if err != nil {
		return objectstore.Object{}, err
	}
	defer got.close()
	if got.ContentRange == nil {
		// The server ignored the range, as HTTP allows.
		return cutFromWhole(op, key, r, func() (objectstore.Object, error) { return s.body(ctx, op, key, got) })
	}
	var first, last, size int64
	if n, err := fmt.Sscanf(*got.ContentRange, "bytes %d-%d/%d", &first, &last, &size); n != 3 || err != nil {
		return objectstore.Object{}, objectstore.Fail(op, key, objectstore.ErrPermanent, "the store answers with Content-Range %q: %s", *got.ContentRange, s.advice(""))
	}
	start, end, err := r.Resolve(op, key, size)
	if err != nil {
		return objectstore.Object{}, err
	}
	o, err := s.body(ctx, op, key, got)
	if err != nil {
		return objectstore.Object{}, err
	}
	if first != start || last != end-1 || o.Size != end-start {
		return objectstore.Object{}, objectstore.Fail(op, key, objectstore.ErrUnavailable, "asked for bytes [%d,%d), the store answered with %d bytes as %q", start, end, o.Size, *got.ContentRange)
	}
	o.Size = size
	return o, nil
}

func cutFromWhole(op, key string, r objectstore.Range, whole func() (objectstore.Object, error)) (objectstore.Object, error) {
	o, err := whole()
	if err != nil {
		return objectstore.Object{}, err
	}
	start, end, err := r.Resolve(op, key, o.Size)
	if err != nil {
		return objectstore.Object{}, err
	}
	o.Body = bytes.Clone(o.Body[start:end])
	return o, nil
}

// Delete implements objectstore.Store, a thousand keys per request. A key that the
// store refuses to delete keeps no other from being deleted.
func (s *Store) Delete(ctx context.Context, keys ...string) error {
	if err := s.check(ctx, "Delete", keys...); err != nil {
		return err
	}
	var refused error
	for batch := range slices.Chunk(keys, deleteBatch) {
		if err := s.again(ctx, func() error {
			left, no, err := s.delete(ctx, batch)
			if no != nil && refused == nil {
				refused = no
			}
			batch = left
			return err
		}); err != nil {
			return err
		}
	}
	return refused
}

// delete deletes one batch. It returns the keys that are worth another try with
// the error of one that is, and why one is refused that is not.
func (s *Store) delete(ctx context.Context, keys []string) (left []string, refused, err error) {
	const op = "Delete"
	if err := s.usable(ctx, op, keys[0]); err != nil {
		return nil, nil, err
	}
	a := begin(ctx, s.config.Silence+time.Duration(len(keys))*10*time.Millisecond)
	defer a.end()
	if len(keys) == 1 {
		// Needs no checksum header, which some servers want in another kind.
		_, err := s.api.DeleteObject(a.ctx, &s3.DeleteObjectInput{Bucket: &s.config.Bucket, Key: s.full(keys[0])})
		if err != nil {
			err = s.judge(ctx, op, keys[0], a.cause(err))
		}
		if errors.Is(err, objectstore.ErrNotFound) {
			err = nil
		}
		return keys, nil, err
	}
	objects := make([]types.ObjectIdentifier, len(keys))
	for i, key := range keys {
		objects[i].Key = s.full(key)
	}
	out, err := s.api.DeleteObjects(a.ctx, &s3.DeleteObjectsInput{
		Bucket: &s.config.Bucket, Delete: &types.Delete{Objects: objects, Quiet: aws.Bool(true)},
	})
	if err != nil {
		return keys, nil, s.judge(ctx, op, keys[0], a.cause(err))
	}
	for _, e := range out.Errors {
		key := strings.TrimPrefix(aws.ToString(e.Key), s.config.Prefix)
		if !slices.Contains(keys, key) {
			// Which ones are left, the answer does not tell.
			return keys, nil, objectstore.Fail(op, keys[0], objectstore.ErrUnavailable, "the store answers with an error of %q, which it was not asked for: code %q (%s)",
				aws.ToString(e.Key), aws.ToString(e.Code), aws.ToString(e.Message))
		}
		kerr := s.judgeDelete(op, key, aws.ToString(e.Code), aws.ToString(e.Message))
		switch {
		case kerr == nil:
		case passing(kerr):
			left, err = append(left, key), kerr
		default:
			refused = kerr
		}
	}
	return left, refused, err
}

// judgeDelete judges the error of one key in the answer to a batch.
func (s *Store) judgeDelete(op, key, code, message string) error {
	kind, known := codes[code]
	if !known {
		kind = objectstore.ErrPermanent
	}
	switch {
	case errors.Is(kind, objectstore.ErrNotFound):
		return nil
	case !passing(kind):
		return objectstore.Fail(op, key, objectstore.ErrPermanent, "code %q (%s): %s", code, message, s.advice(code))
	}
	return objectstore.Fail(op, key, kind, "code %q (%s)", code, message)
}

// List implements objectstore.Store.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]objectstore.Info, error) {
	const op = "List"
	if err := objectstore.CheckList(prefix, limit); err != nil {
		return nil, err
	}
	if err := s.usable(ctx, op, prefix); err != nil {
		return nil, err
	}
	infos := []objectstore.Info{}
	for {
		var out *s3.ListObjectsV2Output
		err := s.again(ctx, func() (err error) {
			out, err = s.list(ctx, op, prefix, after, limit-len(infos))
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, o := range out.Contents {
			key := strings.TrimPrefix(aws.ToString(o.Key), s.config.Prefix)
			infos = append(infos, objectstore.Info{Key: key, Size: aws.ToInt64(o.Size)})
		}
		// A page may be shorter than asked for, also empty, and not the last.
		if !aws.ToBool(out.IsTruncated) || len(infos) >= limit || len(out.Contents) == 0 {
			return infos, nil
		}
		after = infos[len(infos)-1].Key
	}
}

func (s *Store) list(ctx context.Context, op, prefix, after string, limit int) (*s3.ListObjectsV2Output, error) {
	a := begin(ctx, s.config.Silence)
	defer a.end()
	in := &s3.ListObjectsV2Input{Bucket: &s.config.Bucket, Prefix: s.full(prefix), MaxKeys: aws.Int32(int32(limit))}
	if after != "" {
		in.StartAfter = s.full(after)
	}
	out, err := s.api.ListObjectsV2(a.ctx, in)
	if err != nil {
		return nil, s.judge(ctx, op, prefix, a.cause(err))
	}
	return out, nil
}

// Close implements objectstore.Store. It waits for the canceled halves of hedged
// reads.
func (s *Store) Close() error {
	s.closed.Store(true)
	s.running.Wait()
	if c, ok := s.http.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
	return nil
}
