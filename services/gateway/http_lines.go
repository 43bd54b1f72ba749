package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/libs/validate"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// maxLine limits one line of application/x-ndjson: a record in base64 with its
// fields.
const maxLine = 2*stream.MaxRecordBytes + 64<<10

// linesJSON is the answer to an append of lines.
type linesJSON struct {
	Records uint64 `json:"records"`
	ackJSON
}

// stored says in an error how many records are stored in spite of it.
func (out *linesJSON) stored(err error) error {
	if out.Records == 0 {
		return err
	}
	before := fmt.Sprintf("%d records were stored before, seq %d..%d", out.Records, out.FirstSeq, out.NextSeq-1)
	if errors.Is(err, errTooLarge) {
		return fmt.Errorf("%s: %w", before, err)
	}
	return reason.Annotate(err, before)
}

// acked adds an ack to the summary.
func (out *linesJSON) acked(ack *novapb.AppendAck) {
	next := fromAck(ack, out.StreamID)
	if out.Records > 0 {
		next.FirstSeq, next.FirstTimestamp = out.FirstSeq, out.FirstTimestamp
	}
	out.Records += ack.GetNextSeq() - ack.GetFirstSeq()
	out.ackJSON = next
}

// appendLines stores one record a line, however many, in batches of one
// session. A failure says how many records before it were stored.
func (a *httpAPI) appendLines(w http.ResponseWriter, r *http.Request) (any, error) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	session, opened, err := a.openLines(ctx, r)
	if err != nil {
		if r.ContentLength != 0 {
			abandonBody(w)
		}
		return nil, err
	}
	var badLine error // once sent is closed
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		badLine = sendLines(r.Body, session)
		_ = session.CloseSend()
	}()
	out := linesJSON{ackJSON: ackJSON{FirstSeq: opened.GetTail(), NextSeq: opened.GetTail(), Tail: opened.GetTail(), StreamID: opened.GetStreamId()}}
	if err := receiveAcks(session, &out); err != nil {
		select {
		case <-sent:
		default:
			// It ends by itself: the context ends a Send, the deadline a Read.
			abandonBody(w)
		}
		return nil, out.stored(err)
	}
	if <-sent; badLine != nil {
		return nil, out.stored(badLine)
	}
	return out, nil
}

// abandonBody answers now, although the client has not sent all of its body,
// and gives up the connection after it. Without this the answer would wait for
// the client, who may wait for the answer. What comes for some time is read and
// dropped, so that a reset does not overtake the answer.
func abandonBody(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(5 * time.Second)) // only a test's recorder has none
}

func (a *httpAPI) openLines(ctx context.Context, r *http.Request) (novapb.AppendService_AppendSessionClient, *novapb.AppendSessionOpened, error) {
	open := &novapb.AppendSessionOpen{Bucket: r.PathValue("bucket"), Stream: r.PathValue("stream")}
	// The session would name fields of its messages, which are not the caller's.
	if err := validate.Bucket("bucket", open.GetBucket()); err != nil {
		return nil, nil, reason.WithOutcome(err, reason.NotCommitted)
	}
	if err := validate.StreamName("stream", open.GetStream()); err != nil {
		return nil, nil, reason.WithOutcome(err, reason.NotCommitted)
	}
	session, err := a.appends.AppendSession(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := session.Send(&novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Open{Open: open}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	opened, err := session.Recv()
	if err != nil {
		return nil, nil, err
	}
	return session, opened.GetOpened(), nil
}

// receiveAcks takes answers until the session ends. What the call ends with
// says more of a failure than the answer to its batch, such as the tail.
func receiveAcks(session novapb.AppendService_AppendSessionClient, out *linesJSON) error {
	var failed error
	for {
		res, err := session.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return failed
		case err != nil && failed != nil && reason.Code(err) != reason.Code(failed):
			return failed
		case err != nil:
			return err
		case failed != nil:
			continue // of batches behind the failed one
		case res.GetFailure() != nil:
			f := res.GetFailure()
			failed = reason.WithOutcome(reason.New(codes.Code(uint32(f.GetCode())), reason.Reason(f.GetReason()), f.GetMessage()), outcomeOf(f.GetOutcome()))
		default:
			out.acked(res.GetAck())
		}
	}
}

func outcomeOf(o novapb.Outcome) reason.Outcome {
	if o == novapb.Outcome_OUTCOME_NOT_COMMITTED {
		return reason.NotCommitted
	}
	return reason.Unknown
}

// sendLines sends the lines of a body in batches. It returns what is wrong
// with a line; a broken session is told by its receiving side.
func sendLines(body io.Reader, session novapb.AppendService_AppendSessionClient) error {
	lines := bufio.NewReaderSize(body, 64<<10)
	batch, size := []*novapb.AppendRecord(nil), 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := session.Send(&novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Batch{Batch: &novapb.AppendSessionBatch{Records: batch}}})
		batch, size = nil, 0
		return err
	}
	for number := 1; ; number++ {
		line, err := readLine(lines)
		if errors.Is(err, errTooLarge) {
			return errors.Join(flush(), fmt.Errorf("line %d: %w", number, err))
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return reason.Field(fmt.Sprintf("line %d", number), "cannot be read: "+err.Error())
		}
		if len(bytes.TrimSpace(line)) > 0 {
			rec, recErr := lineRecord(line, number)
			if recErr != nil {
				if flush() != nil {
					return nil
				}
				return recErr
			}
			n := len(rec.GetBody())
			for _, h := range rec.GetHeaders() {
				n += len(h.GetName()) + len(h.GetValue())
			}
			if len(batch) == stream.MaxBatchRecords || size+n > stream.MaxBatchBytes {
				if flush() != nil {
					return nil
				}
			}
			batch = append(batch, rec)
			size += n
		}
		if err != nil {
			_ = flush() // its failure is the receiving side's to tell
			return nil
		}
		if lines.Buffered() == 0 && flush() != nil {
			return nil
		}
	}
}

func lineRecord(line []byte, number int) (*novapb.AppendRecord, error) {
	path := fmt.Sprintf("line %d", number)
	var in *recordJSON
	if err := decodeJSON(line, &in); err != nil {
		return nil, reason.WithOutcome(reason.Annotate(err, path), reason.NotCommitted)
	}
	rec, err := in.toRecord(path)
	if err == nil {
		// As above: a record's place in a batch is not the caller's.
		err = validate.Record(path, rec)
	}
	return rec, reason.WithOutcome(err, reason.NotCommitted)
}

// readLine returns a line without its LF; io.EOF with the last one.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return nil, fmt.Errorf("%w: the limit of a line is %d bytes", errTooLarge, maxLine)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		return bytes.TrimSuffix(line, []byte("\n")), err
	}
}
