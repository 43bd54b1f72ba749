package gateway

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/libs/validate"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// appendJSON is the body of a JSON append.
type appendJSON struct {
	Records       []*recordJSON `json:"records"`
	StreamID      string        `json:"stream_id"`
	MatchSeq      *uint64       `json:"match_seq"`
	FencingToken  *string       `json:"fencing_token"`
	ProducerID    string        `json:"producer_id"`
	ProducerEpoch uint64        `json:"producer_epoch"`
	BatchSeq      uint64        `json:"batch_seq"`
	Seal          bool          `json:"seal"`
}

// ackJSON is the answer to an append.
type ackJSON struct {
	FirstSeq       uint64 `json:"first_seq"`
	NextSeq        uint64 `json:"next_seq"`
	Tail           uint64 `json:"tail"`
	FirstTimestamp int64  `json:"first_timestamp"`
	LastTimestamp  int64  `json:"last_timestamp"`
	ContentHash    string `json:"content_hash,omitempty"` // "" if nothing was appended
	Duplicate      bool   `json:"duplicate,omitempty"`
	StreamID       string `json:"stream_id"`
}

func fromAck(a *novapb.AppendAck, id string) ackJSON {
	return ackJSON{
		FirstSeq: a.GetFirstSeq(), NextSeq: a.GetNextSeq(), Tail: a.GetTail(), FirstTimestamp: a.GetFirstTimestamp(),
		LastTimestamp: a.GetLastTimestamp(), ContentHash: hashText(a.GetContentHash()), Duplicate: a.GetDuplicate(), StreamID: id,
	}
}

// hashText writes a content hash as 16 hex digits: a JSON number would lose
// bits in many clients.
func hashText(h uint64) string { return fmt.Sprintf("%016x", h) }

// append stores records, in the form that the content type says.
func (a *httpAPI) append(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := newQuery(r).done(); err != nil {
		return nil, err
	}
	switch t := mediaType(r); t {
	case "application/json":
		return a.appendBatch(r)
	case "application/octet-stream":
		return a.appendRaw(r)
	case "application/x-ndjson":
		return a.appendLines(w, r)
	default:
		return nil, fmt.Errorf("%w: %q, want application/json, application/x-ndjson or application/octet-stream", errMediaType, t)
	}
}

func (a *httpAPI) appendBatch(r *http.Request) (any, error) {
	var in appendJSON
	if err := decodeBody(r, &in); err != nil {
		return nil, err
	}
	req := novapb.AppendRequest_builder{
		Bucket: r.PathValue("bucket"), Stream: r.PathValue("stream"), StreamId: in.StreamID, MatchSeq: in.MatchSeq,
		ProducerId: in.ProducerID, ProducerEpoch: in.ProducerEpoch, BatchSeq: in.BatchSeq, Seal: in.Seal, FencingToken: in.FencingToken,
	}.Build()
	for i, one := range in.Records {
		rec, err := one.toRecord(fmt.Sprintf("records[%d]", i))
		if err != nil {
			return nil, err
		}
		req.Records = append(req.Records, rec)
	}
	res, err := a.appends.Append(r.Context(), req)
	if err != nil {
		return nil, err
	}
	return fromAck(res.GetAck(), res.GetStreamId()), nil
}

func (a *httpAPI) appendRaw(r *http.Request) (any, error) {
	body, err := readBody(r, stream.MaxRecordBytes)
	if err != nil {
		return nil, err
	}
	res, err := a.appends.Append(r.Context(), &novapb.AppendRequest{
		Bucket: r.PathValue("bucket"), Stream: r.PathValue("stream"), Records: []*novapb.AppendRecord{{Body: body}},
	})
	if err != nil {
		return nil, err
	}
	return fromAck(res.GetAck(), res.GetStreamId()), nil
}

// readJSON is a page of records.
type readJSON struct {
	Records     []recordJSON `json:"records"`
	NextSeq     uint64       `json:"next_seq"`
	Tail        uint64       `json:"tail"`
	FirstSeq    uint64       `json:"first_seq"`
	StreamID    string       `json:"stream_id"`
	HashBefore  string       `json:"hash_before"`
	HashAfter   string       `json:"hash_after"`
	EndOfStream bool         `json:"end_of_stream,omitempty"`
}

func (a *httpAPI) read(r *http.Request) (any, error) {
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		return nil, reason.Missing("server-sent events")
	}
	q := newQuery(r)
	req := novapb.ReadRequest_builder{
		Bucket: r.PathValue("bucket"), Stream: r.PathValue("stream"), StreamId: q.text("stream_id"),
		Clamp: q.bool("clamp"), Count: q.uint("count"), Bytes: q.uint("bytes"), Until: q.millis("until"), WaitMs: q.upTo("wait", validate.MaxWaitMillis),
	}.Build()
	starts := 0
	if v := q.uint("seq"); v != nil {
		req.Start = &novapb.ReadRequest_Seq{Seq: *v}
		starts++
	}
	if v := q.millis("timestamp"); v != nil {
		req.Start = &novapb.ReadRequest_Timestamp{Timestamp: *v}
		starts++
	}
	if v := q.uint("tail_offset"); v != nil {
		req.Start = &novapb.ReadRequest_TailOffset{TailOffset: *v}
		starts++
	}
	if err := q.done(); err != nil {
		return nil, err
	}
	if starts > 1 {
		return nil, reason.Field("seq", "only one of seq, timestamp and tail_offset may be given")
	}
	res, err := a.reads.Read(r.Context(), req)
	if err != nil {
		return nil, err
	}
	out := readJSON{
		Records: make([]recordJSON, 0, len(res.GetRecords())), NextSeq: res.GetNextSeq(), Tail: res.GetTail(), FirstSeq: res.GetFirstSeq(),
		StreamID: res.GetStreamId(), HashBefore: hashText(res.GetHashBefore()), HashAfter: hashText(res.GetHashAfter()), EndOfStream: res.GetEndOfStream(),
	}
	for _, rec := range res.GetRecords() {
		out.Records = append(out.Records, fromRecord(rec))
	}
	return out, nil
}

// tailJSON says where a stream ends.
type tailJSON struct {
	Tail          uint64 `json:"tail"`
	LastTimestamp int64  `json:"last_timestamp"`
	ContentHash   string `json:"content_hash"`
	FirstSeq      uint64 `json:"first_seq"`
	StreamID      string `json:"stream_id"`
	Sealed        bool   `json:"sealed"`
}

func (a *httpAPI) checkTail(r *http.Request) (any, error) {
	q := newQuery(r)
	req := &novapb.CheckTailRequest{Bucket: r.PathValue("bucket"), Stream: r.PathValue("stream"), StreamId: q.text("stream_id")}
	if err := q.done(); err != nil {
		return nil, err
	}
	res, err := a.reads.CheckTail(r.Context(), req)
	if err != nil {
		return nil, err
	}
	return tailJSON{
		Tail: res.GetTail(), LastTimestamp: res.GetLastTimestamp(), ContentHash: hashText(res.GetContentHash()),
		FirstSeq: res.GetFirstSeq(), StreamID: res.GetStreamId(), Sealed: res.GetSealed(),
	}, nil
}

func (a *httpAPI) trim(r *http.Request) (any, error) {
	var in struct {
		Seq          *uint64 `json:"seq"`
		StreamID     string  `json:"stream_id"`
		FencingToken *string `json:"fencing_token"`
	}
	if err := decodeBody(r, &in); err != nil {
		return nil, err
	}
	if in.Seq == nil {
		return nil, reason.Field("seq", "must be given")
	}
	res, err := a.appends.Trim(r.Context(), novapb.TrimRequest_builder{
		Bucket: r.PathValue("bucket"), Stream: r.PathValue("stream"), StreamId: in.StreamID, Seq: *in.Seq, FencingToken: in.FencingToken,
	}.Build())
	if err != nil {
		return nil, err
	}
	return map[string]uint64{"first_seq": res.GetFirstSeq(), "tail": res.GetTail()}, nil
}

func (a *httpAPI) seal(r *http.Request) (any, error) {
	var in struct {
		StreamID     string  `json:"stream_id"`
		MatchSeq     *uint64 `json:"match_seq"`
		FencingToken *string `json:"fencing_token"`
	}
	if err := decodeBody(r, &in); err != nil {
		return nil, err
	}
	res, err := a.appends.SealStream(r.Context(), novapb.SealStreamRequest_builder{
		Bucket: r.PathValue("bucket"), Stream: r.PathValue("stream"), StreamId: in.StreamID, MatchSeq: in.MatchSeq, FencingToken: in.FencingToken,
	}.Build())
	if err != nil {
		return nil, err
	}
	return map[string]uint64{"tail": res.GetTail()}, nil
}

func (a *httpAPI) fence(r *http.Request) (any, error) {
	var in struct {
		Token        *string `json:"token"`
		StreamID     string  `json:"stream_id"`
		FencingToken *string `json:"fencing_token"`
	}
	if err := decodeBody(r, &in); err != nil {
		return nil, err
	}
	if in.Token == nil {
		return nil, reason.Field("token", `must be given; "" clears it`)
	}
	res, err := a.appends.SetFencingToken(r.Context(), novapb.SetFencingTokenRequest_builder{
		Bucket: r.PathValue("bucket"), Stream: r.PathValue("stream"), StreamId: in.StreamID, Token: *in.Token, FencingToken: in.FencingToken,
	}.Build())
	if err != nil {
		return nil, err
	}
	return map[string]uint64{"tail": res.GetTail()}, nil
}
