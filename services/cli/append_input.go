package cli

import (
	"context"
	"os"
	"time"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// input is a run of records, or why there are no more.
type input struct {
	run *run
	err error
}

// read sends the records of all files, then closes inputs. A run leaves before
// anything that could wait for more input.
func (a *app) read(ctx context.Context, f format, files []string, runs *runs, inputs chan<- input) {
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
		err := runs.readSource(newSource(label, f, in), send)
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

// sendAll batches records and sends them; a batch leaves when it is full or its
// first record waited for long enough. It returns what was wrong with the input.
func sendAll(ctx context.Context, session *client.Session, most int, runs *runs, inputs <-chan input) error {
	var batch []*novapb.AppendRecord
	var parts []part
	size, room := 0, 0
	timer := time.NewTimer(time.Hour) // runs while the batch is not empty
	timer.Stop()
	defer timer.Stop()
	flush := func() bool {
		if len(batch) == 0 {
			return true
		}
		runs.sending(parts)
		err := session.Send(ctx, batch)
		batch, parts, size, room = nil, nil, 0, len(batch) // the next is like the last
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
			r := in.run
			if len(batch) == 0 && len(r.records) == most && r.size <= stream.MaxBatchBytes {
				// A batch as it is.
				batch, parts = r.records, []part{{run: r, records: most}}
				if !flush() {
					return nil
				}
				continue
			}
			for _, rec := range r.records {
				n := client.AppendSize(rec)
				if size+n > stream.MaxBatchBytes && !flush() {
					return nil
				}
				if len(batch) == 0 {
					timer.Reset(pauseFlush)
					batch = make([]*novapb.AppendRecord, 0, room)
				}
				batch = append(batch, rec)
				size += n
				if k := len(parts); k > 0 && parts[k-1].run == r {
					parts[k-1].records++
				} else {
					parts = append(parts, part{run: r, records: 1})
				}
				if len(batch) == most && !flush() {
					return nil
				}
			}
		}
	}
}
