package index

import (
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
		CreateStreamOnAppendPresence: &novapb.BucketConfig_CreateStreamOnAppend{CreateStreamOnAppend: c.GetCreateStreamOnAppend()}, CreateStreamOnReadPresence: &novapb.BucketConfig_CreateStreamOnRead{CreateStreamOnRead: c.GetCreateStreamOnRead()},
	}
	out.DefaultStreamConfig = streamDefaults(c.GetDefaultStreamConfig(), nil)
	return out
}

// mergeBucket changes the settings that are present in change.
func mergeBucket(c, change *novapb.BucketConfig) {
	if change == nil {
		return
	}
	if change.HasCreateStreamOnAppend() {
		c.SetCreateStreamOnAppend(change.GetCreateStreamOnAppend())
	}
	if change.HasCreateStreamOnRead() {
		c.SetCreateStreamOnRead(change.GetCreateStreamOnRead())
	}
	if d := change.GetDefaultStreamConfig(); d != nil {
		c.DefaultStreamConfig = streamDefaults(d, c.GetDefaultStreamConfig())
	}
}

// streamDefaults fills in what c lacks from fallback, then from the contract.
func streamDefaults(c, fallback *novapb.StreamConfig) *novapb.StreamConfig {
	out := &novapb.StreamConfig{
		Profile:                    novapb.StorageProfile_STORAGE_PROFILE_STANDARD,
		RetentionAgeMsPresence:     &novapb.StreamConfig_RetentionAgeMs{RetentionAgeMs: 0},
		RetentionBytesPresence:     &novapb.StreamConfig_RetentionBytes{RetentionBytes: 0},
		Timestamping:               novapb.TimestampingMode_TIMESTAMPING_MODE_CLIENT_PREFER,
		UncappedTimestampsPresence: &novapb.StreamConfig_UncappedTimestamps{UncappedTimestamps: false},
		DeleteOnEmptyMsPresence:    &novapb.StreamConfig_DeleteOnEmptyMs{DeleteOnEmptyMs: 0},
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
	if change.HasRetentionAgeMs() {
		c.SetRetentionAgeMs(change.GetRetentionAgeMs())
	}
	if change.HasRetentionBytes() {
		c.SetRetentionBytes(change.GetRetentionBytes())
	}
	if change.GetTimestamping() != novapb.TimestampingMode_TIMESTAMPING_MODE_UNSPECIFIED {
		c.Timestamping = change.GetTimestamping()
	}
	if change.HasUncappedTimestamps() {
		c.SetUncappedTimestamps(change.GetUncappedTimestamps())
	}
	if change.HasDeleteOnEmptyMs() {
		c.SetDeleteOnEmptyMs(change.GetDeleteOnEmptyMs())
	}
}
