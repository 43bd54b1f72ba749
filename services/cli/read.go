package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

type readFlags struct {
	fromSeq, fromTime, tail string
	count, bytes            uint64
	until                   string
	follow                  bool
	format                  string
}

func (a *app) readCommand() *cobra.Command {
	var o readFlags
	cmd := &cobra.Command{
		Use:   "read BUCKET/STREAM",
		Short: "print records, from the first retained one to the tail as of the start",
		Args:  cobra.ExactArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return a.readStream(cmd, o, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.fromSeq, "from-seq", "", "start at this number")
	f.StringVar(&o.fromTime, "from-time", "", "start at the first record at or after this time: RFC 3339, milliseconds, or how long ago (5m)")
	f.StringVar(&o.tail, "tail", "", "start this many records before the tail")
	f.Uint64Var(&o.count, "count", 0, "at most this many records")
	f.Uint64Var(&o.bytes, "bytes", 0, "at most this many bytes of headers and bodies, but always one record; 0 reads none")
	f.StringVar(&o.until, "until", "", "stop before the first record at or after this time")
	f.BoolVar(&o.follow, "follow", false, "go on with records as they come")
	f.StringVar(&o.format, "format", "lines", "lines (each record and a LF), json, or raw (records without anything between)")
	cmd.MarkFlagsMutuallyExclusive("from-seq", "from-time", "tail")
	return cmd
}

func (a *app) tailCommand() *cobra.Command {
	o := readFlags{}
	var n uint64
	cmd := &cobra.Command{
		Use:   "tail BUCKET/STREAM",
		Short: "print the last records, and with -f what comes",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.tail = fmt.Sprint(n)
			return a.readStream(cmd, o, args[0])
		},
	}
	f := cmd.Flags()
	f.Uint64VarP(&n, "lines", "n", 10, "how many records")
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with records as they come")
	f.StringVar(&o.format, "format", "lines", "lines, json or raw")
	return cmd
}

// start is where a read begins.
type start struct {
	seq, tail *uint64
	at        *int64
}

func (o *readFlags) start(now time.Time) (start, error) {
	var s start
	switch {
	case o.fromSeq != "":
		n, err := number("--from-seq", o.fromSeq)
		s.seq = &n
		return s, err
	case o.fromTime != "":
		ms, err := parseTime("--from-time", o.fromTime, now)
		s.at = &ms
		return s, err
	case o.tail != "":
		n, err := number("--tail", o.tail)
		s.tail = &n
		return s, err
	}
	return s, nil
}

func (a *app) readStream(cmd *cobra.Command, o readFlags, target string) error {
	bucket, name, err := streamName(target)
	if err != nil {
		return err
	}
	if a.output == "json" && !cmd.Flags().Changed("format") {
		o.format = "json"
	}
	f, err := parseFormat(o.format)
	if err != nil {
		return err
	}
	from, err := o.start(time.Now())
	if err != nil {
		return err
	}
	var count, bytes *uint64
	var until *int64
	if fl := cmd.Flags().Lookup("count"); fl != nil && fl.Changed {
		count = &o.count
	}
	if fl := cmd.Flags().Lookup("bytes"); fl != nil && fl.Changed {
		bytes = &o.bytes
	}
	if o.until != "" {
		ms, err := parseTime("--until", o.until, time.Now())
		if err != nil {
			return err
		}
		until = &ms
	}
	c, done, err := a.connect()
	if err != nil {
		return err
	}
	defer done()
	const buffer = 256 << 10
	out := bufio.NewWriterSize(a.Out, buffer)
	show := func(records []*novapb.Record) error {
		for _, r := range records {
			if err := writeRecord(out, f, r); err != nil {
				return err
			}
		}
		return nil
	}
	if o.follow {
		req := novapb.SubscribeRequest_builder{Bucket: bucket, Stream: name, Count: count, Bytes: bytes, Until: until}.Build()
		switch {
		case from.seq != nil:
			req.Start = &novapb.SubscribeRequest_Seq{Seq: *from.seq}
		case from.at != nil:
			req.Start = &novapb.SubscribeRequest_Timestamp{Timestamp: *from.at}
		case from.tail != nil:
			req.Start = &novapb.SubscribeRequest_TailOffset{TailOffset: *from.tail}
		}
		err = followStream(cmd.Context(), c, req, show, out)
	} else {
		req := novapb.ReadRequest_builder{Bucket: bucket, Stream: name, Count: count, Bytes: bytes, Until: until}.Build()
		switch {
		case from.seq != nil:
			req.Start = &novapb.ReadRequest_Seq{Seq: *from.seq}
		case from.at != nil:
			req.Start = &novapb.ReadRequest_Timestamp{Timestamp: *from.at}
		case from.tail != nil:
			req.Start = &novapb.ReadRequest_TailOffset{TailOffset: *from.tail}
		}
		err = c.Read(cmd.Context(), client.ReadConfig{Request: req}, func(p *novapb.ReadResponse) error {
			if err := show(p.GetRecords()); err != nil {
				return err
			}
			return out.Flush() // the next page may take its time
		})
	}
	flushed := out.Flush()
	if closedPipe(err) || closedPipe(flushed) {
		return nil
	}
	if cmd.Context().Err() != nil {
		if o.follow {
			return flushed // an interrupt is how following ends
		}
		fmt.Fprintln(a.Err, "nova: interrupted")
		return errSilent
	}
	return errors.Join(err, flushed)
}

// closedPipe reports whether whoever reads the output has enough, which is no
// failure.
func closedPipe(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe)
}

func followStream(ctx context.Context, c *client.Client, req *novapb.SubscribeRequest, show func([]*novapb.Record) error, out *bufio.Writer) error {
	sub := c.Subscribe(ctx, client.SubscribeConfig{Request: req})
	defer sub.Close()
	for {
		msg, err := sub.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := show(msg.GetRecords()); err != nil {
			return err
		}
		// A message is what there is for now: show it.
		if err := out.Flush(); err != nil {
			return err
		}
	}
}
