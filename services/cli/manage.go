package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/libs/validate"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// group is a command that only holds others.
func group(use, short string, sub ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return usagef("%s needs one of: %s", use, names(cmd))
	}}
	c.AddCommand(sub...)
	return c
}

func names(cmd *cobra.Command) string {
	var all []string
	for _, c := range cmd.Commands() {
		all = append(all, c.Name())
	}
	return strings.Join(all, ", ")
}

func table(w io.Writer, rows ...[]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	_ = t.Flush()
}

// configFlags declares the settings of streams; set tells which were given.
type configFlags struct {
	profile, timestamping string
	age, empty            string
	bytes                 uint64
	uncapped              bool
}

// declare declares the flags; before goes in front of their descriptions.
func (c *configFlags) declare(cmd *cobra.Command, before string, profile bool) {
	f := cmd.Flags()
	if profile {
		f.StringVar(&c.profile, "profile", "", before+"standard or express; a stream's cannot be changed later")
	}
	f.StringVar(&c.age, "retention-age", "", before+"remove records older than this, for example 7d; 0 keeps them")
	f.Uint64Var(&c.bytes, "retention-bytes", 0, before+"remove oldest records beyond this many bytes as stored, compressed; 0 keeps them")
	f.StringVar(&c.timestamping, "timestamping", "", before+"client_prefer, client_require or arrival")
	f.BoolVar(&c.uncapped, "uncapped-timestamps", false, before+"keep client timestamps that lie in the future")
	f.StringVar(&c.empty, "delete-on-empty", "", before+"delete the stream once it was empty for this long; 0 never")
}

func (c *configFlags) proto(cmd *cobra.Command) (*novapb.StreamConfig, error) {
	out := &novapb.StreamConfig{}
	if c.profile != "" {
		v, ok := novapb.StorageProfile_value["STORAGE_PROFILE_"+strings.ToUpper(c.profile)]
		if !ok || v == 0 {
			return nil, usagef("--profile must be standard or express, is %q", c.profile)
		}
		out.Profile = novapb.StorageProfile(v)
	}
	if c.timestamping != "" {
		v, ok := novapb.TimestampingMode_value["TIMESTAMPING_MODE_"+strings.ToUpper(c.timestamping)]
		if !ok || v == 0 {
			return nil, usagef("--timestamping must be client_prefer, client_require or arrival, is %q", c.timestamping)
		}
		out.Timestamping = novapb.TimestampingMode(v)
	}
	if err := millisFlag("--retention-age", c.age, out.SetRetentionAgeMs); err != nil {
		return nil, err
	}
	if err := millisFlag("--delete-on-empty", c.empty, out.SetDeleteOnEmptyMs); err != nil {
		return nil, err
	}
	if cmd.Flags().Changed("retention-bytes") {
		out.SetRetentionBytes(c.bytes)
	}
	if cmd.Flags().Changed("uncapped-timestamps") {
		out.SetUncappedTimestamps(c.uncapped)
	}
	return out, nil
}

// millisFlag sets the value of a duration flag that is given.
func millisFlag(flag, s string, set func(int64)) error {
	if s == "" {
		return nil
	}
	d, err := config.ParseDuration(s)
	if err != nil {
		return usagef("%s: %w", flag, err)
	}
	set(d.Milliseconds())
	return nil
}

func (a *app) bucketCommand() *cobra.Command {
	var onAppend, onRead, force bool
	var streams configFlags
	settings := func(cmd *cobra.Command) (*novapb.BucketConfig, error) {
		c := &novapb.BucketConfig{}
		if cmd.Flags().Changed("create-stream-on-append") {
			c.SetCreateStreamOnAppend(onAppend)
		}
		if cmd.Flags().Changed("create-stream-on-read") {
			c.SetCreateStreamOnRead(onRead)
		}
		defaults, err := streams.proto(cmd)
		if err == nil && proto.Size(defaults) > 0 {
			c.DefaultStreamConfig = defaults
		}
		return c, err
	}
	declare := func(cmd *cobra.Command) *cobra.Command {
		cmd.Flags().BoolVar(&onAppend, "create-stream-on-append", false, "create a stream that an append names")
		cmd.Flags().BoolVar(&onRead, "create-stream-on-read", false, "create a stream that a read names")
		streams.declare(cmd, "default for new streams: ", true)
		return cmd
	}
	create := declare(&cobra.Command{Use: "create BUCKET", Short: "create a bucket", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		wanted, err := settings(cmd)
		if err != nil {
			return err
		}
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			res, err := c.Buckets.CreateBucket(ctx, &novapb.CreateBucketRequest{Bucket: args[0], Config: wanted})
			if err != nil {
				return err
			}
			return a.showBuckets(res.GetBucket())
		})
	}})
	get := &cobra.Command{Use: "get BUCKET", Short: "show a bucket", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			res, err := c.Buckets.GetBucket(ctx, &novapb.GetBucketRequest{Bucket: args[0]})
			if err != nil {
				return err
			}
			return a.showBuckets(res.GetBucket())
		})
	}}
	var which listing
	list := &cobra.Command{Use: "list", Short: "list buckets, in byte order of names", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return a.pages(cmd, which, func(ctx context.Context, c *client.Client, p listing) (string, int, bool, error) {
			res, err := c.Buckets.ListBuckets(ctx, &novapb.ListBucketsRequest{Prefix: p.prefix, StartAfter: p.after, Limit: p.limit})
			if err != nil || len(res.GetBuckets()) == 0 && !p.first {
				return "", 0, false, err
			}
			all := res.GetBuckets()
			last := ""
			if len(all) > 0 {
				last = all[len(all)-1].GetName()
			}
			return last, len(all), res.GetHasMore(), a.showBuckets(all...)
		})
	}}
	which.declare(list)
	update := declare(&cobra.Command{Use: "update BUCKET", Short: "change a bucket's settings", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		wanted, err := settings(cmd)
		if err != nil {
			return err
		}
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			res, err := c.Buckets.UpdateBucket(ctx, &novapb.UpdateBucketRequest{Bucket: args[0], Config: wanted})
			if err != nil {
				return err
			}
			return a.showBuckets(res.GetBucket())
		})
	}})
	remove := &cobra.Command{Use: "delete BUCKET", Short: "delete a bucket; refused while it has streams unless --force", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			_, err := c.Buckets.DeleteBucket(ctx, &novapb.DeleteBucketRequest{Bucket: args[0], Force: force})
			if err != nil {
				return err
			}
			return a.show(map[string]string{"deleted": args[0]}, func(w io.Writer) { fmt.Fprintln(w, "deleted bucket", args[0]) })
		})
	}}
	remove.Flags().BoolVar(&force, "force", false, "delete its streams first")
	return group("bucket", "manage buckets", create, get, list, update, remove)
}

// listing says what to list.
type listing struct {
	prefix, after string
	limit         uint32 // of all pages, 0 none; of this page
	first         bool   // page
}

func (l *listing) declare(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.prefix, "prefix", "", "only names that start with it")
	cmd.Flags().StringVar(&l.after, "start-after", "", "only names after it, in byte order")
	cmd.Flags().Uint32Var(&l.limit, "limit", 0, "at most this many; 0 shows all")
}

// pages shows a list page by page, however long it is. one shows a page and
// returns its last name, its length, and whether more follow.
func (a *app) pages(cmd *cobra.Command, l listing, one func(context.Context, *client.Client, listing) (string, int, bool, error)) error {
	left, page := l.limit, l
	for page.first = true; ; page.first = false {
		page.limit = validate.MaxListLimit
		if l.limit > 0 {
			page.limit = min(page.limit, left)
		}
		more := false
		err := a.call(cmd, func(ctx context.Context, c *client.Client) error {
			last, n, has, err := one(ctx, c, page)
			page.after, more = last, has && n > 0
			left -= min(left, uint32(n))
			return err
		})
		if err != nil || !more || l.limit > 0 && left == 0 {
			return err
		}
	}
}

func (a *app) showBuckets(buckets ...*novapb.Bucket) error {
	if a.output == "json" {
		for _, b := range buckets {
			if err := a.show(bucketView(b), nil); err != nil {
				return err
			}
		}
		return nil
	}
	rows := [][]string{{"BUCKET", "STATE", "CREATED", "CREATES STREAMS ON"}}
	for _, b := range buckets {
		var on []string
		if b.GetConfig().GetCreateStreamOnAppend() {
			on = append(on, "append")
		}
		if b.GetConfig().GetCreateStreamOnRead() {
			on = append(on, "read")
		}
		if len(on) == 0 {
			on = []string{"-"}
		}
		rows = append(rows, []string{b.GetName(), strings.ToLower(strings.TrimPrefix(b.GetState().String(), "BUCKET_STATE_")), when(b.GetCreatedAt()), strings.Join(on, ", ")})
	}
	table(a.Out, rows...)
	return nil
}

func (a *app) streamCommand() *cobra.Command {
	var made, changed configFlags
	one := func(use, short string, f func(cmd *cobra.Command, ctx context.Context, c *client.Client, bucket, name string) error) *cobra.Command {
		return &cobra.Command{Use: use + " BUCKET/STREAM", Short: short, Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
			bucket, name, err := streamName(args[0])
			if err != nil {
				return err
			}
			return a.call(cmd, func(ctx context.Context, c *client.Client) error { return f(cmd, ctx, c, bucket, name) })
		}}
	}
	create := one("create", "create a stream", func(cmd *cobra.Command, ctx context.Context, c *client.Client, bucket, name string) error {
		settings, err := made.proto(cmd)
		if err != nil {
			return err
		}
		res, err := c.Streams.CreateStream(ctx, &novapb.CreateStreamRequest{Bucket: bucket, Stream: name, Config: settings})
		if err != nil {
			return err
		}
		return a.showStream(res.GetStream(), nil)
	})
	made.declare(create, "", true)
	get := one("get", "show a stream: settings, first and next number, bytes, leader", func(_ *cobra.Command, ctx context.Context, c *client.Client, bucket, name string) error {
		res, err := c.Streams.GetStream(ctx, &novapb.GetStreamRequest{Bucket: bucket, Stream: name})
		if err != nil {
			return err
		}
		return a.showStream(res.GetStream(), res.GetExtent())
	})
	update := one("update", "change a stream's settings", func(cmd *cobra.Command, ctx context.Context, c *client.Client, bucket, name string) error {
		settings, err := changed.proto(cmd)
		if err != nil {
			return err
		}
		res, err := c.Streams.UpdateStream(ctx, &novapb.UpdateStreamRequest{Bucket: bucket, Stream: name, Config: settings})
		if err != nil {
			return err
		}
		return a.showStream(res.GetStream(), nil)
	})
	changed.declare(update, "", false)
	seal := one("seal", "close a stream for appends, for ever", func(_ *cobra.Command, ctx context.Context, c *client.Client, bucket, name string) error {
		res, err := c.Appends.SealStream(ctx, &novapb.SealStreamRequest{Bucket: bucket, Stream: name})
		if err != nil {
			return err
		}
		return a.show(map[string]uint64{"tail": res.GetTail()}, func(w io.Writer) { fmt.Fprintf(w, "sealed at %d\n", res.GetTail()) })
	})
	remove := one("delete", "delete a stream", func(_ *cobra.Command, ctx context.Context, c *client.Client, bucket, name string) error {
		if _, err := c.Streams.DeleteStream(ctx, &novapb.DeleteStreamRequest{Bucket: bucket, Stream: name}); err != nil {
			return err
		}
		return a.show(map[string]string{"deleted": bucket + "/" + name}, func(w io.Writer) { fmt.Fprintf(w, "deleted stream %s/%s\n", bucket, name) })
	})
	var which listing
	list := &cobra.Command{Use: "list BUCKET", Short: "list the streams of a bucket, in byte order of names", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		return a.pages(cmd, which, func(ctx context.Context, c *client.Client, p listing) (string, int, bool, error) {
			res, err := c.Streams.ListStreams(ctx, &novapb.ListStreamsRequest{Bucket: args[0], Prefix: p.prefix, StartAfter: p.after, Limit: p.limit})
			if err != nil || len(res.GetStreams()) == 0 && !p.first {
				return "", 0, false, err
			}
			all := res.GetStreams()
			last := ""
			if len(all) > 0 {
				last = all[len(all)-1].GetName()
			}
			return last, len(all), res.GetHasMore(), a.showStreams(all)
		})
	}}
	which.declare(list)
	return group("stream", "manage streams", create, get, list, update, seal, remove)
}

func (a *app) showStreams(all []*novapb.Stream) error {
	if a.output == "json" {
		for _, s := range all {
			if err := a.show(streamView(s, nil), nil); err != nil {
				return err
			}
		}
		return nil
	}
	rows := [][]string{{"STREAM", "STATE", "CREATED", "SHARD", "ID"}}
	for _, s := range all {
		rows = append(rows, []string{
			s.GetBucket() + "/" + s.GetName(), strings.ToLower(strings.TrimPrefix(s.GetState().String(), "STREAM_STATE_")), when(s.GetCreatedAt()), fmt.Sprint(s.GetShard()), s.GetStreamId(),
		})
	}
	table(a.Out, rows...)
	return nil
}

func (a *app) showStream(s *novapb.Stream, e *novapb.StreamExtent) error {
	return a.show(streamView(s, e), func(w io.Writer) {
		c := s.GetConfig()
		rows := [][]string{
			{"stream", s.GetBucket() + "/" + s.GetName()}, {"id", s.GetStreamId()},
			{"state", strings.ToLower(strings.TrimPrefix(s.GetState().String(), "STREAM_STATE_"))},
			{"created", when(s.GetCreatedAt())},
			{"profile", strings.ToLower(strings.TrimPrefix(c.GetProfile().String(), "STORAGE_PROFILE_"))},
			{"timestamping", strings.ToLower(strings.TrimPrefix(c.GetTimestamping().String(), "TIMESTAMPING_MODE_"))},
			{"retention age", forever(c.GetRetentionAgeMs())}, {"retention bytes", unlimited(c.GetRetentionBytes())},
			{"delete on empty", never(c.GetDeleteOnEmptyMs())},
		}
		if e != nil {
			rows = append(rows,
				[]string{"first seq", fmt.Sprint(e.GetFirstSeq())}, []string{"tail", fmt.Sprint(e.GetTail())},
				[]string{"stored bytes", fmt.Sprint(e.GetStoredBytes())}, []string{"last timestamp", when(e.GetLastTimestamp())},
				[]string{"content hash", fmt.Sprintf("%016x", e.GetContentHash())}, []string{"leader", fmt.Sprintf("%s (shard %d, epoch %d)", e.GetLeader(), s.GetShard(), e.GetEpoch())})
		}
		table(w, rows...)
	})
}

func forever(ms int64) string {
	if ms == 0 {
		return "for ever"
	}
	return config.FormatDuration(time.Duration(ms) * time.Millisecond)
}

func never(ms int64) string {
	if ms == 0 {
		return "never"
	}
	return "after " + forever(ms)
}

func unlimited(n uint64) string {
	if n == 0 {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

func (a *app) checkTailCommand() *cobra.Command {
	return &cobra.Command{Use: "check-tail BUCKET/STREAM", Short: "show the next number, last timestamp and content hash", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		bucket, name, err := streamName(args[0])
		if err != nil {
			return err
		}
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			res, err := c.Reads.CheckTail(ctx, &novapb.CheckTailRequest{Bucket: bucket, Stream: name})
			if err != nil {
				return err
			}
			return a.show(map[string]any{
				"tail": res.GetTail(), "first_seq": res.GetFirstSeq(), "last_timestamp": res.GetLastTimestamp(),
				"content_hash": fmt.Sprintf("%016x", res.GetContentHash()), "stream_id": res.GetStreamId(), "sealed": res.GetSealed(),
			}, func(w io.Writer) {
				table(w, []string{"tail", fmt.Sprint(res.GetTail())}, []string{"first seq", fmt.Sprint(res.GetFirstSeq())},
					[]string{"last timestamp", when(res.GetLastTimestamp())}, []string{"content hash", fmt.Sprintf("%016x", res.GetContentHash())},
					[]string{"sealed", fmt.Sprint(res.GetSealed())})
			})
		})
	}}
}

func (a *app) trimCommand() *cobra.Command {
	return &cobra.Command{Use: "trim BUCKET/STREAM SEQ", Short: "remove records below SEQ for readers at once, their bytes later", Args: cobra.ExactArgs(2), RunE: func(cmd *cobra.Command, args []string) error {
		bucket, name, err := streamName(args[0])
		if err != nil {
			return err
		}
		seq, err := number("SEQ", args[1])
		if err != nil {
			return err
		}
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			res, err := c.Appends.Trim(ctx, &novapb.TrimRequest{Bucket: bucket, Stream: name, Seq: seq})
			if err != nil {
				return err
			}
			return a.show(map[string]uint64{"first_seq": res.GetFirstSeq(), "tail": res.GetTail()}, func(w io.Writer) {
				fmt.Fprintf(w, "first seq %d, tail %d\n", res.GetFirstSeq(), res.GetTail())
			})
		})
	}}
}

func (a *app) fenceCommand() *cobra.Command {
	return &cobra.Command{Use: "fence BUCKET/STREAM TOKEN", Short: `set the fencing token, which appends that name one must name; "" clears it`, Args: cobra.ExactArgs(2), RunE: func(cmd *cobra.Command, args []string) error {
		bucket, name, err := streamName(args[0])
		if err != nil {
			return err
		}
		if len(args[1]) > stream.MaxTokenBytes {
			return usagef("TOKEN must be at most %d bytes", stream.MaxTokenBytes)
		}
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			res, err := c.Appends.SetFencingToken(ctx, &novapb.SetFencingTokenRequest{Bucket: bucket, Stream: name, Token: args[1]})
			if err != nil {
				return err
			}
			return a.show(map[string]uint64{"tail": res.GetTail()}, func(w io.Writer) {
				if args[1] == "" {
					fmt.Fprintf(w, "cleared from %d on\n", res.GetTail())
					return
				}
				fmt.Fprintf(w, "in force from %d on\n", res.GetTail())
			})
		})
	}}
}
