package telemetry

import "go.opentelemetry.io/otel/attribute"

// The attribute keys of spans, metrics and logs. Never put a stream or a chain
// on a metric: there are too many.
const (
	AttrBucket  = attribute.Key("nova.bucket")
	AttrStream  = attribute.Key("nova.stream") // its name
	AttrShard   = attribute.Key("nova.shard")
	AttrEpoch   = attribute.Key("nova.epoch")
	AttrChain   = attribute.Key("nova.chain")
	AttrSlot    = attribute.Key("nova.slot")
	AttrFlight  = attribute.Key("nova.flight")
	AttrBytes   = attribute.Key("nova.bytes")
	AttrRecords = attribute.Key("nova.records")
	AttrEntries = attribute.Key("nova.entries")
	AttrSeq     = attribute.Key("nova.seq") // of the first record
	AttrReason  = attribute.Key("nova.reason")
	AttrOutcome = attribute.Key("nova.outcome")
	AttrService = attribute.Key("nova.service")
	AttrNode    = attribute.Key("nova.node")
)
