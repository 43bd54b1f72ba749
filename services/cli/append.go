package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

const (
	// pauseFlush is how long a record waits for others of its batch.
	pauseFlush = 10 * time.Millisecond
	// settleTime is how long an interrupted append waits for what is under way.
	settleTime = 5 * time.Second
	// progressEvery is how often progress is shown.
	progressEvery = 200 * time.Millisecond
)

type appendFlags struct {
	create       bool
	format       string
	batch        int
	producer     string
	epoch        uint64
	match, token string
	patience     duration
}

func (a *app) appendCommand() *cobra.Command {
	var o appendFlags
	cmd := &cobra.Command{
		Use:   "append BUCKET/STREAM [FILE...]",
		Short: "append records from files or standard input",
		Long: `append reads records and stores them in order, each once: what is not
acknowledged is sent again, for --patience, whatever happens on the way.

Formats: lines (a record is a line, split at LF only, without it), json (an
object {"body","headers","timestamp","encoding"} per line), raw (a record is a
whole file). Without FILE, or with -, it reads standard input.

A line or record beyond 1 MiB ends it, after everything before was stored. An
interrupt stops reading, waits shortly for what is under way, and says how far
it got: a whole number of batches. Records that come slowly are sent at once.
What it waits for longer than 5 seconds it tells on standard error.

The last line is "appended N records, seq A..B", both inclusive; with -o json
{"records","first_seq","last_seq","complete"}.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.append(cmd, o, args[0], args[1:]) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.create, "create", false, "create the stream, and its bucket too, if they do not exist")
	f.StringVar(&o.format, "format", "lines", "lines, json or raw")
	f.IntVar(&o.batch, "batch", stream.MaxBatchRecords, "records in one batch at most, 1..1000")
	f.StringVar(&o.producer, "producer", "", "name of the producer: a later run fences an earlier one of the same name; default a new one")
	f.Uint64Var(&o.epoch, "producer-epoch", 0, "epoch of --producer, which fences lower ones; default the present time in milliseconds")
	f.StringVar(&o.match, "match-seq", "", "fail unless the first record gets this number; 0: the stream must be empty")
	f.StringVar(&o.token, "fencing-token", "", "fail unless it is the stream's fencing token")
	o.patience = duration(2 * time.Minute)
	f.Var(&o.patience, "patience", "how long to try again while nothing is acknowledged")
	return cmd
}

func (a *app) append(cmd *cobra.Command, o appendFlags, target string, files []string) error {
	bucket, name, err := streamName(target)
	if err != nil {
		return err
	}
	f, err := parseFormat(o.format)
	if err != nil {
		return err
	}
	if o.batch < 1 || o.batch > stream.MaxBatchRecords {
		return usagef("--batch must be 1..%d, is %d", stream.MaxBatchRecords, o.batch)
	}
	cfg := client.SessionConfig{Bucket: bucket, Stream: name, Producer: o.producer, Epoch: o.epoch, Patience: time.Duration(o.patience)}
	if cmd.Flags().Changed("producer-epoch") && o.producer == "" {
		return usagef("--producer-epoch needs --producer")
	}
	if o.patience == 0 {
		return usagef("--patience must be above 0")
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	// Found out before anything is appended, where it can be.
	for _, name := range files {
		if info, err := os.Stat(name); name != "-" && err != nil {
			return err
		} else if err == nil && name != "-" && info.IsDir() {
			return fmt.Errorf("%s is a directory", name)
		}
	}
	if o.match != "" {
		n, err := number("--match-seq", o.match)
		if err != nil {
			return err
		}
		cfg.MatchSeq = &n
	}
	if cmd.Flags().Changed("fencing-token") {
		cfg.FencingToken = &o.token
	}
	c, done, err := a.connect()
	if err != nil {
		return err
	}
	defer done()
	if o.create {
		if err := a.create(cmd.Context(), c, bucket, name, time.Duration(o.patience)); err != nil {
			return err
		}
	}
	defer collectLess()()
	runs := &runs{}
	cfg.Acked = runs.acknowledged
	// The session outlives an interrupt, to learn what became of what was sent.
	session := c.OpenSession(context.WithoutCancel(cmd.Context()), cfg)
	stopProgress := a.progress(session)
	inputs := make(chan input, runsQueued)
	ctx, stop := context.WithCancel(cmd.Context())
	go a.read(ctx, f, files, runs, inputs)
	readErr := sendAll(ctx, session, o.batch, runs, inputs)
	stop()
	settle, cancel := context.WithCancel(context.WithoutCancel(cmd.Context()))
	defer cancel()
	if cmd.Context().Err() != nil {
		settle, cancel = context.WithTimeout(settle, settleTime)
		defer cancel()
	} else {
		// A second chance to interrupt, while the last acks are awaited.
		defer context.AfterFunc(cmd.Context(), func() {
			time.AfterFunc(settleTime, cancel)
		})()
	}
	p, err := session.Close(settle)
	stopProgress()
	said := a.appended(p, err == nil && readErr == nil && cmd.Context().Err() == nil)
	switch {
	case err != nil && cmd.Context().Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(a.Err, "nova: interrupted; what was under way may be stored too")
		return errSilent
	case err != nil:
		return err
	case cmd.Context().Err() != nil:
		fmt.Fprintln(a.Err, "nova: interrupted")
		return errSilent
	case readErr != nil:
		return readErr
	}
	return said
}

// appendMemory is what append takes without thinking of it: what is read ahead
// and not yet acknowledged is at most a third of it.
const appendMemory = 96 << 20

// collectLess makes the garbage collector wait for more garbage than a program of
// a small heap is allowed: all records are, and they are many. It returns what
// makes it as it was. Whoever sets GOGC or GOMEMLIMIT is obeyed.
func collectLess() func() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return func() {}
	}
	percent, limit := debug.SetGCPercent(400), debug.SetMemoryLimit(appendMemory)
	return func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
}

// appended prints the last line.
func (a *app) appended(p client.Progress, complete bool) error {
	out := map[string]any{"records": p.Records, "complete": complete}
	if p.Records > 0 {
		out["first_seq"], out["last_seq"] = p.FirstSeq, p.NextSeq-1
	}
	return a.show(out, func(w io.Writer) {
		if p.Records == 0 {
			fmt.Fprintln(w, "appended 0 records")
			return
		}
		fmt.Fprintf(w, "appended %d records, seq %d..%d\n", p.Records, p.FirstSeq, p.NextSeq-1)
	})
}

// create makes the bucket and the stream unless they exist.
func (a *app) create(ctx context.Context, c *client.Client, bucket, name string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	try := &trying{began: time.Now()}
	defer a.tellLate(func() string { return a.waiting(try.waiting()) })()
	defer a.showLine(func() string { return a.waiting(try.waiting()) })()
	for {
		_, err := c.Streams.CreateStream(ctx, &novapb.CreateStreamRequest{Bucket: bucket, Stream: name})
		if reason.Is(err, reason.BucketNotFound) {
			if _, err = c.Buckets.CreateBucket(ctx, &novapb.CreateBucketRequest{Bucket: bucket}); err == nil || reason.Is(err, reason.BucketExists) {
				continue
			}
		}
		if err == nil || reason.Is(err, reason.StreamExists) {
			return nil
		}
		if reason.Code(err) != codes.Unavailable || ctx.Err() != nil {
			return err
		}
		try.failed(err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// progress shows on a terminal how far a session is, and everywhere what it waits
// for, if that is for long; call the function to end.
func (a *app) progress(s *client.Session) func() {
	started := time.Now()
	waiting := func() string { return a.waiting(s.Waiting()) }
	stop := a.showLine(func() string {
		p := s.Progress()
		rate := float64(p.Records) / time.Since(started).Seconds()
		line := fmt.Sprintf("%d records acknowledged, %.0f/s", p.Records, rate)
		if w := waiting(); w != "" {
			line += "; " + w
		}
		return line
	})
	told := a.tellLate(waiting)
	return func() {
		told()
		stop()
	}
}

// showLine shows on a terminal one line that is renewed, until the function that
// it returns is called.
func (a *app) showLine(line func() string) func() {
	if !a.Terminal {
		return func() {}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				fmt.Fprint(a.Err, "\r\033[K")
				return
			case <-tick.C:
				fmt.Fprint(a.Err, "\r\033[K"+line())
			}
		}
	}()
	return func() {
		close(stop)
		<-done
	}
}
