package index

import (
	"context"
	"encoding/hex"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

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
//  2. put the descriptor, unfinished, 3. the head: rows that no name leads to;
//     the marker leads the reaper to them.
//  4. put the name, if it is free: whoever meets it from now on does step 5 and 6
//     before the name means anything, so do a repeat and the reaper.
//  5. change the bucket's row: proves that the bucket was not deleted before 4.
//     If it was, the creation is undone.
//  6. change the descriptor from unfinished: the stream exists. It proves that
//     nobody undid the creation, and that the reaper did not remove the
//     descriptor between 2 and 4: both change the version seen unfinished. If the
//     stream has limits, what looks after them is armed before (retention.go).
//  7. drop the marker; otherwise the reaper finds nothing to do.
//
// No record can be stored before 6, so undoing loses none (I2).
func (s *Service) CreateStream(ctx context.Context, req *indexpb.CreateStreamRequest) (*indexpb.CreateStreamResponse, error) {
	submitted := req.GetConfig()
	if submitted == nil {
		submitted = &novapb.StreamConfig{}
	}
	if err := available(submitted); err != nil {
		return nil, err
	}
	var out *indexpb.CreateStreamResponse
	err := retry(ctx, func() error {
		var err error
		out, err = s.createStream(ctx, req, submitted)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// createStream fails with errAgain when the name was taken when it was to be
// put, and free when it was read, or when the creation was undone meanwhile.
func (s *Service) createStream(ctx context.Context, req *indexpb.CreateStreamRequest, submitted *novapb.StreamConfig) (*indexpb.CreateStreamResponse, error) {
	bucket, err := s.active(ctx, req.GetBucket())
	if err != nil {
		return nil, err
	}
	found, err := s.byName(ctx, req.GetBucket(), req.GetStream())
	if err == nil {
		return existing(found.descriptor, req, submitted)
	}
	if !reason.Is(err, reason.StreamNotFound) {
		return nil, err
	}
	constellation, err := s.OpenConstellation(ctx, &indexpb.OpenConstellationRequest{})
	if reason.Code(err) == codes.InvalidArgument {
		err = reason.New(codes.Unavailable, reason.NoLeader, "the constellation is new: no sequencer has opened it yet")
	}
	if err != nil {
		return nil, err
	}
	id := stream.NewID()
	attempt := stream.NewAttemptID().String()
	d := &indexpb.StreamDescriptor{
		StreamId: id.String(), Bucket: req.GetBucket(), BucketId: bucket.GetBucketId(), Name: req.GetStream(),
		Shard:  uint32(id.Shard(constellation.GetConstellation().GetShardCount())),
		Config: streamDefaults(submitted, bucket.GetConfig().GetDefaultStreamConfig()), Submitted: submitted,
		RequestToken: req.GetRequestToken(), CreatedAt: s.now().UnixMilli(), Attempt: attempt, Unfinished: true,
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
	head := &indexpb.Head{
		StreamId: d.GetStreamId(), Shard: d.GetShard(), BucketId: d.GetBucketId(), State: indexpb.HeadState_HEAD_STATE_ACTIVE, Attempt: attempt,
	}
	if _, err := s.put(ctx, headKey(d.GetStreamId()), head, metastore.Absent); err != nil {
		return nil, err
	}
	name := &indexpb.NameRecord{Bucket: d.GetBucket(), Name: d.GetName(), StreamId: d.GetStreamId(), Shard: d.GetShard(), Attempt: attempt}
	nameVersion, err := s.put(ctx, nameKey(d.GetBucket(), d.GetName()), name, metastore.Absent)
	if reason.Is(err, reason.VersionConflict) {
		// Another creation was faster. What this one left goes at once, or with
		// its marker.
		if s.removeOrphan(ctx, d) == nil {
			_ = s.remove(ctx, dueKey(due.GetQueue(), due.GetAt(), due.GetDueId()), dueVersion)
		}
		return nil, errAgain
	}
	if err != nil {
		return nil, err
	}
	made, err := s.finish(ctx, named{name, nameVersion, d, version})
	if err != nil {
		return nil, err
	}
	_ = s.remove(ctx, dueKey(due.GetQueue(), due.GetAt(), due.GetDueId()), dueVersion) // else the reaper drops it
	return &indexpb.CreateStreamResponse{Stream: made.descriptor, Created: true}, nil
}

// named is a name's row and the descriptor that it leads to, with the versions
// they were read at.
type named struct {
	name       *indexpb.NameRecord
	version    metastore.Version
	descriptor *indexpb.StreamDescriptor
	at         metastore.Version
}

// finish does steps 5 and 6 for a name that leads to an unfinished stream. It
// fails with errAgain when another came between.
func (s *Service) finish(ctx context.Context, n named) (named, error) {
	err := s.proveActive(ctx, n.descriptor.GetBucket(), n.descriptor.GetBucketId())
	if reason.Is(err, reason.BucketDeleting) || reason.Is(err, reason.BucketNotFound) {
		if uerr := s.bury(ctx, n.name, n.version, n.at); uerr != nil {
			return named{}, uerr
		}
		return named{}, err
	}
	if err != nil {
		return named{}, err
	}
	d := proto.CloneOf(n.descriptor)
	d.Unfinished, d.Attempt = false, stream.NewAttemptID().String()
	if limited(d.GetConfig()) {
		if err := s.armRetention(ctx, d); err != nil {
			return named{}, err
		}
	}
	v, err := s.put(ctx, descriptorKey(d.GetStreamId()), d, n.at)
	if reason.Is(err, reason.VersionConflict) {
		// Another finished it, which a read that is old can not make up; or it is
		// gone, which only a change can tell.
		d, v, err = s.descriptor(ctx, d.GetStreamId())
		if err == nil && d.GetUnfinished() || reason.Is(err, reason.RowNotFound) {
			err = errAgain
		}
	}
	if err != nil {
		return named{}, err
	}
	n.descriptor, n.at = d, v
	return n, nil
}

// existing answers a creation whose name is taken: a retry gets the first
// result.
func existing(d *indexpb.StreamDescriptor, req *indexpb.CreateStreamRequest, submitted *novapb.StreamConfig) (*indexpb.CreateStreamResponse, error) {
	if !sameRequest(d.GetRequestToken(), req.GetRequestToken(), d.GetSubmitted(), submitted) {
		return nil, reason.New(codes.AlreadyExists, reason.StreamExists, "stream "+d.GetBucket()+"/"+d.GetName()+" exists, made by another request or with other settings")
	}
	return &indexpb.CreateStreamResponse{Stream: d}, nil
}

func errNoStream(bucket, name string) error {
	return reason.New(codes.NotFound, reason.StreamNotFound, "stream "+bucket+"/"+name+" does not exist")
}

// byName returns the stream that a name means. errAgain: the name is changing.
func (s *Service) byName(ctx context.Context, bucket, name string) (named, error) {
	var n indexpb.NameRecord
	v, err := s.read(ctx, nameKey(bucket, name), &n)
	if reason.Is(err, reason.RowNotFound) {
		return named{}, errNoStream(bucket, name)
	}
	if err != nil {
		return named{}, err
	}
	if isProbe(&n) {
		if err := s.remove(ctx, nameKey(bucket, name), v); err != nil {
			return named{}, err
		}
		return named{}, errNoStream(bucket, name)
	}
	d, at, err := s.descriptor(ctx, n.GetStreamId())
	if reason.Is(err, reason.RowNotFound) {
		if err := s.bury(ctx, &n, v, metastore.Absent); err != nil {
			return named{}, err
		}
		return named{}, errNoStream(bucket, name)
	}
	if err != nil {
		return named{}, err
	}
	found := named{&n, v, d, at}
	if d.GetUnfinished() {
		return s.finish(ctx, found)
	}
	return found, nil
}

// ResolveStream returns the stream that a name means. A bucket may create
// streams that are named first by an append or a read.
func (s *Service) ResolveStream(ctx context.Context, req *indexpb.ResolveStreamRequest) (*indexpb.ResolveStreamResponse, error) {
	d, err := s.meaning(ctx, req.GetBucket(), req.GetStream())
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
		d, err := s.meaning(ctx, req.GetBucket(), req.GetStream())
		return &indexpb.ResolveStreamResponse{Stream: d}, err
	}
	return &indexpb.ResolveStreamResponse{Stream: made.GetStream()}, err
}

// meaning is byName, again while the name is changing.
func (s *Service) meaning(ctx context.Context, bucket, name string) (*indexpb.StreamDescriptor, error) {
	var out *indexpb.StreamDescriptor
	err := retry(ctx, func() error {
		found, err := s.byName(ctx, bucket, name)
		out = found.descriptor
		return err
	})
	return out, err
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
		if isProbe(n) {
			continue // whoever put it, or meets it, removes it
		}
		d, _, err := s.descriptor(ctx, n.GetStreamId())
		if reason.Is(err, reason.RowNotFound) {
			// Without this a bucket could hold a name that nobody can delete.
			if err := s.bury(ctx, n, versions[i], metastore.Absent); err != nil && !reason.Is(err, reason.VersionConflict) {
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
		found, err := s.byName(ctx, req.GetBucket(), req.GetStream())
		if err != nil {
			return err
		}
		d := found.descriptor
		if want := req.GetStreamId(); want != "" && want != d.GetStreamId() {
			return errNoStream(req.GetBucket(), req.GetStream()+" with id "+want)
		}
		profile := req.GetConfig().GetProfile()
		if profile != novapb.StorageProfile_STORAGE_PROFILE_UNSPECIFIED && profile != d.GetConfig().GetProfile() {
			return reason.Field("config.profile", "cannot be changed after the stream was created")
		}
		marked := limited(d.GetConfig()) && d.GetRetentionMarker() != ""
		mergeStream(d.GetConfig(), req.GetConfig())
		if limited(d.GetConfig()) && !marked {
			if err := s.armRetention(ctx, d); err != nil {
				return err
			}
		}
		d.Attempt, out = attempt, d
		_, err = s.put(ctx, descriptorKey(d.GetStreamId()), d, found.at)
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
		_, v, holds, err := s.holds(ctx, bucket, name, id)
		if err != nil || !holds {
			return err
		}
		return s.remove(ctx, nameKey(bucket, name), v)
	})
	if err != nil {
		return err
	}
	return retry(ctx, func() error {
		v, err := s.read(ctx, descriptorKey(id), &indexpb.StreamDescriptor{})
		if reason.Is(err, reason.RowNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		return s.remove(ctx, descriptorKey(id), v)
	})
}

// RemoveOrphan sees to a creation that did not finish. One that has its name is
// finished, or undone if its bucket is being deleted. Of one without a name the
// rows are removed, the descriptor first, at the version seen before the name
// was looked at: a slow creator that puts its name after that look fails at
// step 6 of CreateStream, or has done it and the removal fails.
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
	n, nv, holds, err := s.holds(ctx, of.GetBucket(), of.GetName(), of.GetStreamId())
	switch {
	case err != nil:
		return err
	case holds && gone:
		return s.bury(ctx, n, nv, metastore.Absent)
	case holds && isGrave(&d):
		return s.bury(ctx, n, nv, v)
	case holds && d.GetUnfinished():
		_, err := s.finish(ctx, named{n, nv, &d, v})
		if reason.Is(err, reason.BucketDeleting) || reason.Is(err, reason.BucketNotFound) {
			return nil // it is undone
		}
		return err
	case holds:
		return nil
	}
	if !gone {
		if err := s.remove(ctx, descriptorKey(of.GetStreamId()), v); err != nil {
			return err
		}
	}
	return s.removeUntouched(ctx, of.GetStreamId())
}

// removeUntouched removes the head of a stream that was never opened, so that
// no entry of it can be anywhere. That the version fits proves it. Any other
// head is needed until the stream's DELETE entry is settled.
func (s *Service) removeUntouched(ctx context.Context, id string) error {
	h, v, err := s.head(ctx, id)
	if reason.Is(err, reason.RowNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if h.GetOpenedEpoch() > 0 || h.GetFoldedEpoch() > 0 || h.GetState() != indexpb.HeadState_HEAD_STATE_ACTIVE {
		return nil
	}
	if err := s.remove(ctx, headKey(id), v); !reason.Is(err, reason.VersionConflict) {
		return err
	}
	return nil // it was opened just now
}
