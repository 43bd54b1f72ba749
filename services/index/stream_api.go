package index

import (
	"context"
	"encoding/hex"
	"errors"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// QueueCreate holds the markers of creations that may not have finished.
const QueueCreate = "create"

// CreateStream makes a stream. Its steps, and what a crash after each leaves:
//
//  1. arm a due marker: nothing to clean.
//  2. put the descriptor, 3. the head: rows that no name leads to; the marker
//     leads the reaper to them.
//  4. put the name, if it is free: the stream exists; 5 and 6 are missing, and
//     a repeat does them.
//  5. change the descriptor: proves that the reaper did not remove it between 2
//     and 4, because it removes only the version that it saw without a name.
//  6. change the bucket's row: proves that the bucket was not deleted before 4.
//     If it was, the name is removed again, or the marker leads the reaper to it.
//  7. drop the marker; otherwise the reaper finds nothing to do.
func (s *Service) CreateStream(ctx context.Context, req *indexpb.CreateStreamRequest) (*indexpb.CreateStreamResponse, error) {
	for {
		out, err := s.createStream(ctx, req)
		// The name was taken when it was to be put, and free when it was read.
		if !errors.Is(err, errAgain) {
			return out, err
		}
		if ctx.Err() != nil {
			return nil, reason.New(reason.Code(ctx.Err()), "", ctx.Err().Error())
		}
	}
}

func (s *Service) createStream(ctx context.Context, req *indexpb.CreateStreamRequest) (*indexpb.CreateStreamResponse, error) {
	submitted := req.GetConfig()
	if submitted == nil {
		submitted = &novapb.StreamConfig{}
	}
	if err := available(submitted); err != nil {
		return nil, err
	}
	bucket, err := s.active(ctx, req.GetBucket())
	if err != nil {
		return nil, err
	}
	found, err := s.byName(ctx, req.GetBucket(), req.GetStream())
	if err == nil {
		return s.existing(ctx, bucket, found, req, submitted)
	}
	if !reason.Is(err, reason.StreamNotFound) {
		return nil, err
	}
	constellation, err := s.OpenConstellation(ctx, &indexpb.OpenConstellationRequest{})
	if err != nil {
		return nil, err
	}
	id := stream.NewID()
	attempt := stream.NewAttemptID().String()
	d := &indexpb.StreamDescriptor{
		StreamId: id.String(), Bucket: req.GetBucket(), Name: req.GetStream(),
		Shard:  uint32(id.Shard(constellation.GetConstellation().GetShardCount())),
		Config: streamDefaults(submitted, bucket.GetConfig().GetDefaultStreamConfig()), Submitted: submitted,
		RequestToken: req.GetRequestToken(), CreatedAt: s.now().UnixMilli(), Attempt: attempt,
	}
	due := &indexpb.Due{
		DueId: id.String(), Queue: QueueCreate, At: s.now().Add(s.cfg.OrphanAfter).UnixMilli(),
		Bucket: d.GetBucket(), Name: d.GetName(), StreamId: d.GetStreamId(), Attempt: attempt,
	}
	dueVersion, err := s.put(ctx, dueKey(due.GetQueue(), due.GetAt(), due.GetDueId()), due, metastore.Absent)
	if err != nil {
		return nil, err
	}
	version, err := s.put(ctx, descriptorKey(d.GetStreamId()), d, metastore.Absent)
	if err != nil {
		return nil, err
	}
	head := &indexpb.Head{StreamId: d.GetStreamId(), Shard: d.GetShard(), State: indexpb.HeadState_HEAD_STATE_ACTIVE, Attempt: attempt}
	if _, err := s.put(ctx, headKey(d.GetStreamId()), head, metastore.Absent); err != nil {
		return nil, err
	}
	name := &indexpb.NameRecord{Bucket: d.GetBucket(), Name: d.GetName(), StreamId: d.GetStreamId(), Shard: d.GetShard(), Attempt: attempt}
	if _, err := s.put(ctx, nameKey(d.GetBucket(), d.GetName()), name, metastore.Absent); err != nil {
		if reason.Is(err, reason.VersionConflict) {
			// Another creation was faster. What this one left goes at once, or
			// with its marker.
			if s.removeOrphan(ctx, d) == nil {
				_ = s.remove(ctx, dueKey(due.GetQueue(), due.GetAt(), due.GetDueId()), dueVersion)
			}
			return nil, errAgain
		}
		return nil, err
	}
	d.Attempt = stream.NewAttemptID().String()
	if _, err := s.put(ctx, descriptorKey(d.GetStreamId()), d, version); err != nil {
		if reason.Is(err, reason.VersionConflict) {
			return nil, errors.Join(s.freeName(ctx, d.GetBucket(), d.GetName(), d.GetStreamId()),
				reason.New(codes.Unavailable, "", "the creation took too long and was cleaned up; try again"))
		}
		return nil, err
	}
	if err := s.confirm(ctx, bucket, d); err != nil {
		return nil, err
	}
	_ = s.remove(ctx, dueKey(due.GetQueue(), due.GetAt(), due.GetDueId()), dueVersion) // else the reaper drops it
	return &indexpb.CreateStreamResponse{Stream: d, Created: true}, nil
}

// confirm is step 6.
func (s *Service) confirm(ctx context.Context, bucket *indexpb.BucketRecord, d *indexpb.StreamDescriptor) error {
	err := s.proveActive(ctx, bucket.GetName(), bucket.GetBucketId())
	if !reason.Is(err, reason.BucketDeleting) && !reason.Is(err, reason.BucketNotFound) {
		return err
	}
	if ferr := s.freeName(ctx, d.GetBucket(), d.GetName(), d.GetStreamId()); ferr != nil {
		return ferr
	}
	return err
}

// existing answers a creation whose name is taken: a retry gets the first
// result.
func (s *Service) existing(ctx context.Context, bucket *indexpb.BucketRecord, d *indexpb.StreamDescriptor, req *indexpb.CreateStreamRequest, submitted *novapb.StreamConfig) (*indexpb.CreateStreamResponse, error) {
	if !sameRequest(d.GetRequestToken(), req.GetRequestToken(), d.GetSubmitted(), submitted) {
		return nil, reason.New(codes.AlreadyExists, reason.StreamExists, "stream "+d.GetBucket()+"/"+d.GetName()+" exists, made by another request or with other settings")
	}
	// The first try may have died before it was confirmed.
	if err := s.confirm(ctx, bucket, d); err != nil {
		return nil, err
	}
	return &indexpb.CreateStreamResponse{Stream: d}, nil
}

func errNoStream(bucket, name string) error {
	return reason.New(codes.NotFound, reason.StreamNotFound, "stream "+bucket+"/"+name+" does not exist")
}

// byName returns the stream that a name means.
func (s *Service) byName(ctx context.Context, bucket, name string) (*indexpb.StreamDescriptor, error) {
	var n indexpb.NameRecord
	v, err := s.read(ctx, nameKey(bucket, name), &n)
	if reason.Is(err, reason.RowNotFound) {
		return nil, errNoStream(bucket, name)
	}
	if err != nil {
		return nil, err
	}
	d, _, err := s.descriptor(ctx, n.GetStreamId())
	if !reason.Is(err, reason.RowNotFound) {
		return d, err
	}
	switch err := s.bury(ctx, &n, v); {
	case err == nil:
		return nil, errNoStream(bucket, name)
	case reason.Is(err, reason.VersionConflict):
		return nil, reason.New(codes.Unavailable, "", "the name "+bucket+"/"+name+" is changing; try again")
	default:
		return nil, err
	}
}

// ResolveStream returns the stream that a name means. A bucket may create
// streams that are named first by an append or a read.
func (s *Service) ResolveStream(ctx context.Context, req *indexpb.ResolveStreamRequest) (*indexpb.ResolveStreamResponse, error) {
	d, err := s.byName(ctx, req.GetBucket(), req.GetStream())
	if err == nil {
		return &indexpb.ResolveStreamResponse{Stream: d}, nil
	}
	if !reason.Is(err, reason.StreamNotFound) {
		return nil, err
	}
	bucket, berr := s.active(ctx, req.GetBucket())
	if berr != nil {
		return nil, berr
	}
	c := bucket.GetConfig()
	if !(req.GetForAppend() && c.GetCreateStreamOnAppend() || req.GetForRead() && c.GetCreateStreamOnRead()) {
		return nil, err
	}
	made, err := s.CreateStream(ctx, &indexpb.CreateStreamRequest{Bucket: req.GetBucket(), Stream: req.GetStream()})
	if reason.Is(err, reason.StreamExists) {
		// Somebody made it with settings of their own; that is the stream.
		d, err := s.byName(ctx, req.GetBucket(), req.GetStream())
		return &indexpb.ResolveStreamResponse{Stream: d}, err
	}
	return &indexpb.ResolveStreamResponse{Stream: made.GetStream()}, err
}

// ListStreams returns a page of a bucket's streams. A stream whose descriptor
// is gone is being deleted and left out.
func (s *Service) ListStreams(ctx context.Context, req *indexpb.ListStreamsRequest) (*indexpb.ListStreamsResponse, error) {
	if _, _, err := s.bucket(ctx, req.GetBucket()); err != nil {
		return nil, err
	}
	out := &indexpb.ListStreamsResponse{}
	var names []*indexpb.NameRecord
	var versions []metastore.Version
	start, end := nameRange("name/"+req.GetBucket()+"/", hex.EncodeToString([]byte(req.GetPrefix())), hex.EncodeToString([]byte(req.GetStartAfter())))
	more, err := list(ctx, s, partNamesBase+req.GetBucket(), start, end, req.GetLimit(),
		func() *indexpb.NameRecord { return &indexpb.NameRecord{} },
		func(r *indexpb.NameRecord, v metastore.Version) {
			names, versions = append(names, r), append(versions, v)
		})
	if err != nil {
		return nil, err
	}
	out.HasMore = more
	for i, n := range names {
		d, _, err := s.descriptor(ctx, n.GetStreamId())
		if reason.Is(err, reason.RowNotFound) {
			// Without this a bucket could hold a name that nobody can delete.
			if err := s.bury(ctx, n, versions[i]); err != nil && !reason.Is(err, reason.VersionConflict) {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		out.Streams = append(out.Streams, d)
	}
	return out, nil
}

// UpdateStream changes the settings that are present.
func (s *Service) UpdateStream(ctx context.Context, req *indexpb.UpdateStreamRequest) (*indexpb.UpdateStreamResponse, error) {
	attempt := stream.NewAttemptID().String()
	var out *indexpb.StreamDescriptor
	err := retry(ctx, func() error {
		named, err := s.byName(ctx, req.GetBucket(), req.GetStream())
		if err != nil {
			return err
		}
		if want := req.GetStreamId(); want != "" && want != named.GetStreamId() {
			return errNoStream(req.GetBucket(), req.GetStream()+" with id "+want)
		}
		d, v, err := s.descriptor(ctx, named.GetStreamId())
		if err != nil {
			return err
		}
		profile := d.GetConfig().GetProfile()
		mergeStream(d.GetConfig(), req.GetConfig())
		d.Config.Profile = profile
		d.Attempt, out = attempt, d
		_, err = s.put(ctx, descriptorKey(d.GetStreamId()), d, v)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &indexpb.UpdateStreamResponse{Stream: out}, nil
}

// FreeName frees a name if it still means the stream, and removes the stream's
// descriptor. The caller has committed the stream's DELETE entry.
func (s *Service) FreeName(ctx context.Context, req *indexpb.FreeNameRequest) (*indexpb.FreeNameResponse, error) {
	err := s.freeName(ctx, req.GetBucket(), req.GetStream(), req.GetStreamId())
	if err != nil {
		return nil, err
	}
	return &indexpb.FreeNameResponse{Freed: true}, nil
}

// freeName removes the name, then the descriptor: a crash in between leaves a
// descriptor that no name leads to, and a repeat removes it.
func (s *Service) freeName(ctx context.Context, bucket, name, id string) error {
	err := retry(ctx, func() error {
		var n indexpb.NameRecord
		v, err := s.read(ctx, nameKey(bucket, name), &n)
		if reason.Is(err, reason.RowNotFound) || err == nil && n.GetStreamId() != id {
			return nil
		}
		if err != nil {
			return err
		}
		return s.remove(ctx, nameKey(bucket, name), v)
	})
	if err != nil {
		return err
	}
	return s.removeRow(ctx, descriptorKey(id), &indexpb.StreamDescriptor{})
}

func (s *Service) removeRow(ctx context.Context, key metastore.Key, m row) error {
	return retry(ctx, func() error {
		v, err := s.read(ctx, key, m)
		if reason.Is(err, reason.RowNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		return s.remove(ctx, key, v)
	})
}

// RemoveOrphan removes the rows of a creation that never got its name. The
// descriptor goes first, at the version seen before the name was looked at: a
// slow creator that puts its name after that look finds its descriptor changed
// (step 5 of CreateStream) and undoes, or has changed it and the removal fails.
func (s *Service) RemoveOrphan(ctx context.Context, req *indexpb.RemoveOrphanRequest) (*indexpb.RemoveOrphanResponse, error) {
	return &indexpb.RemoveOrphanResponse{}, s.removeOrphan(ctx, &indexpb.StreamDescriptor{
		StreamId: req.GetStreamId(), Bucket: req.GetBucket(), Name: req.GetStream(),
	})
}

func (s *Service) removeOrphan(ctx context.Context, of *indexpb.StreamDescriptor) error {
	var d indexpb.StreamDescriptor
	v, err := s.read(ctx, descriptorKey(of.GetStreamId()), &d)
	if err != nil && !reason.Is(err, reason.RowNotFound) {
		return err
	}
	gone := err != nil
	var n indexpb.NameRecord
	nv, err := s.read(ctx, nameKey(of.GetBucket(), of.GetName()), &n)
	if err != nil && !reason.Is(err, reason.RowNotFound) {
		return err
	}
	if err == nil && n.GetStreamId() == of.GetStreamId() {
		if gone || isGrave(&d) {
			return s.bury(ctx, &n, nv)
		}
		return s.adopt(ctx, &n) // it has its name
	}
	if !gone {
		if err := s.remove(ctx, descriptorKey(of.GetStreamId()), v); err != nil {
			return err
		}
	}
	return s.removeRow(ctx, headKey(of.GetStreamId()), &indexpb.Head{})
}
