package index

import (
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// available refuses settings of features that this version does not have.
func available(c *novapb.StreamConfig) error {
	if c.GetProfile() == novapb.StorageProfile_STORAGE_PROFILE_EXPRESS {
		return reason.Missing("express storage")
	}
	return nil
}

// bucketDefaults fills in what was not submitted.
func bucketDefaults(c *novapb.BucketConfig) *novapb.BucketConfig {
	out := &novapb.BucketConfig{
		CreateStreamOnAppend: proto.Bool(c.GetCreateStreamOnAppend()), CreateStreamOnRead: proto.Bool(c.GetCreateStreamOnRead()),
	}
	out.DefaultStreamConfig = streamDefaults(c.GetDefaultStreamConfig(), nil)
	return out
}

// mergeBucket changes the settings that are present in change.
func mergeBucket(c, change *novapb.BucketConfig) {
	if change == nil {
		return
	}
	if change.CreateStreamOnAppend != nil {
		c.CreateStreamOnAppend = proto.Bool(change.GetCreateStreamOnAppend())
	}
	if change.CreateStreamOnRead != nil {
		c.CreateStreamOnRead = proto.Bool(change.GetCreateStreamOnRead())
	}
	if d := change.GetDefaultStreamConfig(); d != nil {
		c.DefaultStreamConfig = streamDefaults(d, c.GetDefaultStreamConfig())
	}
}

// streamDefaults fills in what c lacks from fallback, then from the contract.
func streamDefaults(c, fallback *novapb.StreamConfig) *novapb.StreamConfig {
	out := &novapb.StreamConfig{
		Profile:            novapb.StorageProfile_STORAGE_PROFILE_STANDARD,
		RetentionAgeMs:     proto.Int64(0),
		RetentionBytes:     proto.Uint64(0),
		Timestamping:       novapb.TimestampingMode_TIMESTAMPING_MODE_CLIENT_PREFER,
		UncappedTimestamps: proto.Bool(false),
		DeleteOnEmptyMs:    proto.Int64(0),
	}
	mergeStream(out, fallback)
	mergeStream(out, c)
	return out
}

// mergeStream changes the settings that are present in change.
func mergeStream(c, change *novapb.StreamConfig) {
	if change == nil {
		return
	}
	if change.GetProfile() != novapb.StorageProfile_STORAGE_PROFILE_UNSPECIFIED {
		c.Profile = change.GetProfile()
	}
	if change.RetentionAgeMs != nil {
		c.RetentionAgeMs = proto.Int64(change.GetRetentionAgeMs())
	}
	if change.RetentionBytes != nil {
		c.RetentionBytes = proto.Uint64(change.GetRetentionBytes())
	}
	if change.GetTimestamping() != novapb.TimestampingMode_TIMESTAMPING_MODE_UNSPECIFIED {
		c.Timestamping = change.GetTimestamping()
	}
	if change.UncappedTimestamps != nil {
		c.UncappedTimestamps = proto.Bool(change.GetUncappedTimestamps())
	}
	if change.DeleteOnEmptyMs != nil {
		c.DeleteOnEmptyMs = proto.Int64(change.GetDeleteOnEmptyMs())
	}
}
