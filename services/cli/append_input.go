package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// input is a run of records that were there without waiting, or why there are
// no more.
type input struct {
	records []*novapb.AppendRecord
	size    int // of the records, client.AppendSize
	err     error
}

// Bounds of what is read ahead: runs of so many bytes (or one record), so many
// runs. With the session's window they bound the memory that append needs.
const (
	runBytes   = 128 << 10
	runsQueued = 4
)

// read sends the records of all files, then closes inputs. A run leaves before
// anything that could wait for more input.
func (a *app) read(ctx context.Context, f format, files []string, inputs chan<- input) {
	defer close(inputs)
	send := func(in input) bool {
		select {
		case inputs <- in:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for _, name := range files {
		in, label := a.In, "standard input"
		if name != "-" {
			file, err := os.Open(name)
			if err != nil {
				send(input{err: err})
				return
			}
			in, label = file, name
		}
		err := readSource(newSource(label, f, in), send)
		if file, ok := in.(*os.File); ok && name != "-" {
			_ = file.Close()
		}
		if err != nil {
			send(input{err: err})
			return
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// readSource sends the records of one source. What precedes a record that
// cannot be read is sent.
func readSource(s *source, send func(input) bool) error {
	var run []*novapb.AppendRecord
	size, room := 0, 0
	for {
		r, err := s.next()
		if err == nil {
			if run == nil {
				run = make([]*novapb.AppendRecord, 0, room) // the next is like the last
			}
			run = append(run, r)
			size += client.AppendSize(r)
		}
		if len(run) > 0 && (err != nil || size >= runBytes || len(run) >= stream.MaxBatchRecords || !s.ready()) {
			if !send(input{records: run, size: size}) {
				return nil
			}
			run, size, room = nil, 0, len(run)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// sendAll batches records and sends them; a batch leaves when it is full or its
// first record waited for long enough. It returns what was wrong with the input.
func sendAll(ctx context.Context, session *client.Session, most int, inputs <-chan input) error {
	var batch []*novapb.AppendRecord
	size := 0
	timer := time.NewTimer(time.Hour) // runs while the batch is not empty
	timer.Stop()
	defer timer.Stop()
	flush := func() bool {
		if len(batch) == 0 {
			return true
		}
		err := session.Send(ctx, batch)
		batch, size = nil, 0
		timer.Stop()
		return err == nil // Close has the reason
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-session.Done():
			return nil // it failed; Close has the reason
		case <-timer.C:
			if !flush() {
				return nil
			}
		case in, ok := <-inputs:
			if !ok || in.err != nil {
				flush()
				return in.err
			}
			if len(batch) == 0 && len(in.records) == most && in.size <= stream.MaxBatchBytes {
				// A batch as it is.
				if batch = in.records; !flush() {
					return nil
				}
				continue
			}
			for _, r := range in.records {
				n := client.AppendSize(r)
				if size+n > stream.MaxBatchBytes && !flush() {
					return nil
				}
				if len(batch) == 0 {
					timer.Reset(pauseFlush)
				}
				batch = append(batch, r)
				size += n
				if len(batch) == most && !flush() {
					return nil
				}
			}
		}
	}
}
