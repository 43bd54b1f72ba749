package retention

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// day is a constellation in use.
type day struct {
	*world

	buckets novapb.BucketServiceClient
	streams novapb.StreamServiceClient
	appends novapb.AppendServiceClient
	reads   novapb.ReadServiceClient
	slots   []*slot
	over    atomic.Bool
	others  int // buckets beyond those that it made

	// How often each came, for the report.
	records, bytes, reading, seeks, again, trims, deletes, creations, ends atomic.Int64
	taken, troubles, trimmedUnder                                          atomic.Int64
}

// slot is a name, and the streams that it meant.
type slot struct {
	bucket, name string
	every        time.Duration // between appends
	most         int           // records of an append
	burst        int           // appends at once
	size         int
	cfg          *novapb.StreamConfig
	quietAfter   time.Duration // no append comes after it; 0: never
	begun        time.Time

	mu   latch // held while the name is changed or appended to
	rand *rand.Rand
	next time.Time
	dead time.Time // when it is made again
	// now is the present stream, nil: there is none.
	now atomic.Pointer[generation]
}

// latch is a mutex under which time passes: in a bubble it does not while somebody
// waits for a sync.Mutex.
type latch chan struct{}

func (l latch) Lock()   { l <- struct{}{} }
func (l latch) Unlock() { <-l }

const bucketCount = 4

func bucketName(i int) string { return fmt.Sprintf("bucket-%d", i) }

// connect makes the clients.
func (d *day) connect() {
	d.buckets, d.streams = novapb.NewBucketServiceClient(d.public), novapb.NewStreamServiceClient(d.public)
	d.appends, d.reads = novapb.NewAppendServiceClient(d.public), novapb.NewReadServiceClient(d.public)
}

func newDay(t testing.TB, seed uint64, names int) *day {
	d := &day{world: newWorld(t, busy)}
	d.connect()
	d.ready()
	for i := range bucketCount {
		d.must(d.try(func(ctx context.Context) error {
			_, err := d.buckets.CreateBucket(ctx, &novapb.CreateBucketRequest{Bucket: bucketName(i)})
			return err
		}))
	}
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range names {
		d.slots = append(d.slots, newSlot(i, rand.New(rand.NewPCG(seed, uint64(i)+2)), r))
	}
	d.each(d.slots, func(s *slot) { d.create(s) })
	return d
}

// newSlot chooses what a stream is like: its limits, and how often it is written.
func newSlot(i int, own, r *rand.Rand) *slot {
	s := &slot{mu: make(latch, 1), bucket: bucketName(i % bucketCount), name: fmt.Sprintf("stream-%04d", i), rand: own, most: 4, burst: 1, size: 600, begun: time.Now(), cfg: &novapb.StreamConfig{}}
	hours := func(from, to int) int64 { return (time.Duration(from+r.IntN(to-from+1)) * time.Hour).Milliseconds() }
	age := func(ms int64) {
		s.cfg.RetentionAgeMsPresence = &novapb.StreamConfig_RetentionAgeMs{RetentionAgeMs: ms}
	}
	limit := func(n uint64) {
		s.cfg.RetentionBytesPresence = &novapb.StreamConfig_RetentionBytes{RetentionBytes: n}
	}
	switch i / bucketCount % 10 {
	case 0, 1, 2: // kept
	case 3, 4, 5:
		age(hours(1, 12))
	case 6, 7:
		limit(4<<10 + r.Uint64N(28<<10))
	case 8:
		age(hours(2, 12))
		limit(4<<10 + r.Uint64N(28<<10))
	case 9:
		age(hours(1, 3))
		s.cfg.DeleteOnEmptyMsPresence = &novapb.StreamConfig_DeleteOnEmptyMs{DeleteOnEmptyMs: (time.Duration(10+r.IntN(60)) * time.Minute).Milliseconds()}
		s.quietAfter = time.Duration(hours(1, 20)) * time.Millisecond
	}
	switch rate := r.IntN(1000); {
	case rate < 3:
		s.every, s.most = 20*time.Second, 6
	case rate < 15:
		s.every = 5 * time.Minute
	case rate < 60:
		s.every = 30 * time.Minute
	case rate < 300:
		s.every = 3 * time.Hour
	default:
		s.every = 10 * time.Hour
	}
	switch i {
	case 0: // kept, and often written: its head grows pages
		s.every, s.quietAfter = 20*time.Second, 0
	case 1, 2: // large records, copied as they are
		s.every, s.size, s.most = time.Hour, 400<<10, 1
	case bucketCount * 6, bucketCount*6 + 1: // many bytes, and few that stay
		s.every, s.size, s.most = 5*time.Minute, 200<<10, 2
		limit(2 << 20)
	case bucketCount * 3: // runs of objects of their own
		s.every, s.size, s.most, s.burst = 40*time.Minute, 900<<10, 3, 8
		age(time.Hour.Milliseconds())
	}
	s.next = time.Now().Add(time.Duration(r.Int64N(int64(s.every))))
	return s
}

// each calls f with slots, some at once.
func (d *day) each(slots []*slot, f func(*slot)) {
	var wg sync.WaitGroup
	room := make(chan struct{}, 24)
	for _, s := range slots {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			f(s)
		})
	}
	wg.Wait()
}

// note logs something with the time of the day.
func (d *day) note(format string, args ...any) {
	d.t.Logf("%s "+format, append([]any{time.Now().UTC().Format("02 15:04:05")}, args...)...)
}

// patience is how long a call is repeated.
const patience = 15 * time.Minute

// try repeats a call until it is answered for certain.
func (d *day) try(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		one, end := context.WithTimeout(ctx, time.Minute)
		err := f(one)
		end()
		switch reason.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted:
		default:
			return err
		}
		d.again.Add(1)
		if ctx.Err() != nil {
			return fmt.Errorf("for %v: %w", patience, err)
		}
		time.Sleep(2 * time.Second)
	}
}

// create makes a stream under a name; s.mu is held, or nobody else knows s.
func (d *day) create(s *slot) {
	g := &generation{bucket: s.bucket, name: s.name, cfg: s.cfg, seed: s.rand.Uint64(), size: s.size, producer: stream.NewID().String(), created: time.Now()}
	token := stream.NewID().String()
	err := d.try(func(ctx context.Context) error {
		res, err := d.streams.CreateStream(ctx, &novapb.CreateStreamRequest{Bucket: s.bucket, Stream: s.name, Config: s.cfg, RequestToken: token})
		g.id = res.GetStream().GetStreamId()
		if reason.Is(err, reason.StreamExists) && s.now.Load() != nil {
			// Who deletes the one before has yet to free the name.
			d.taken.Add(1)
			return reason.New(codes.Unavailable, "", "the name is taken")
		}
		return err
	})
	if err != nil {
		d.t.Errorf("create %s: %v", s.name, err)
		return
	}
	d.creations.Add(1)
	s.now.Store(g)
}

// append adds a batch to the stream of a name.
func (d *day) append(s *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.now.Load()
	n := 1 + s.rand.IntN(s.most)
	g.mu.Lock()
	from := g.sent
	g.sent += n
	g.emptied = time.Time{}
	batch := g.batches
	g.batches++
	g.mu.Unlock()
	req := &novapb.AppendRequest{Bucket: s.bucket, Stream: s.name, StreamId: g.id, ProducerId: g.producer, BatchSeq: batch}
	for i := range n {
		req.Records = append(req.Records, &novapb.AppendRecord{Body: g.bodyOf(from + i)})
	}
	var ack *novapb.AppendAck
	err := d.try(func(ctx context.Context) error {
		res, err := d.appends.Append(ctx, req)
		ack = res.GetAck()
		return err
	})
	switch {
	case err == nil && (ack.GetFirstSeq() != uint64(from) || ack.GetNextSeq() != uint64(from+n)):
		d.t.Errorf("%s: records %d to %d were acknowledged as %v", s.name, from, from+n, ack)
	case err == nil:
		if ack.GetFirstTimestamp() != ack.GetLastTimestamp() {
			d.t.Errorf("%s: one batch is of two times: %v", s.name, ack)
		}
		g.mu.Lock()
		for range n {
			g.times = append(g.times, ack.GetFirstTimestamp())
		}
		g.mu.Unlock()
		d.records.Add(int64(n))
		d.bytes.Add(int64(g.sum(from, from+n)))
	case isNotFound(err):
		g.mu.Lock()
		g.sent, g.batches = from, batch // nothing was stored
		g.mu.Unlock()
		if !g.mayBeGone(time.Now()) {
			d.t.Errorf("%s is gone: %v", s.name, err)
		}
		d.ends.Add(1)
		d.create(s)
	default:
		d.t.Errorf("append to %s: %v", s.name, err)
	}
}

func isNotFound(err error) bool { return reason.Is(err, reason.StreamNotFound) }

// trim trims the stream of a name to a number in it, or all of it.
func (d *day) trim(s *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.now.Load()
	if g == nil {
		return
	}
	g.mu.Lock()
	to := uint64(s.rand.IntN(len(g.times) + 1))
	if s.rand.IntN(8) == 0 {
		to = uint64(len(g.times))
	}
	to = max(to, g.trimming)
	g.trimming = to
	if to == uint64(g.sent) && g.emptied.IsZero() {
		g.emptied = time.Now()
	}
	g.mu.Unlock()
	err := d.try(func(ctx context.Context) error {
		_, err := d.appends.Trim(ctx, &novapb.TrimRequest{Bucket: s.bucket, Stream: s.name, StreamId: g.id, Seq: to})
		return err
	})
	if isNotFound(err) && g.mayBeGone(time.Now()) {
		return
	}
	if err != nil {
		d.t.Errorf("trim %s to %d: %v", s.name, to, err)
		return
	}
	g.mu.Lock()
	g.trimmed = to
	g.mu.Unlock()
	d.trims.Add(1)
}

// remove deletes the stream of a name, and says when it is made again.
func (d *day) remove(s *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.now.Load()
	if g == nil {
		return
	}
	g.mu.Lock()
	g.deleting = true
	g.mu.Unlock()
	err := d.try(func(ctx context.Context) error {
		_, err := d.streams.DeleteStream(ctx, &novapb.DeleteStreamRequest{Bucket: s.bucket, Stream: s.name})
		return err
	})
	if err != nil && !isNotFound(err) {
		d.t.Errorf("delete %s: %v", s.name, err)
	}
	d.deletes.Add(1)
	g.mu.Lock()
	g.gone = time.Now()
	g.mu.Unlock()
	s.now.Store(nil)
	s.dead = time.Now().Add(time.Duration(s.rand.IntN(40)) * time.Minute)
	if s.rand.IntN(2) == 0 {
		d.create(s) // at once
	}
}

// look reads the stream of a name whole, or looks for a time in it. What the name
// meant when it began may be changed meanwhile, unless alone.
func (d *day) look(s *slot, r *rand.Rand, alone bool) {
	if alone {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	g := s.now.Load()
	if g == nil {
		return
	}
	id := g.id
	if alone {
		id = "" // the name alone leads there
	}
	var err error
	for range 4 {
		if err = d.whole(g, id); !errors.Is(err, errTrimmed) {
			break
		}
		d.trimmedUnder.Add(1)
	}
	d.reading.Add(1)
	if err == nil && r.IntN(3) == 0 {
		err = d.seek(g, id, r)
		d.seeks.Add(1)
	}
	switch {
	case isNotFound(err) && g.mayBeGone(time.Now()):
	case isNotFound(err):
		d.t.Errorf("%s %s is gone: %v, %v", s.name, g.id, err, g)
	case err != nil:
		d.t.Errorf("read %s %s at %v: %v", s.name, g.id, time.Now(), err)
	case g.mustBeGone(time.Now()):
		d.t.Errorf("%s %s has been empty since %v and is still there", s.name, g.id, g.emptySince())
	}
}

var errTrimmed = errors.New("it was trimmed meanwhile")

// whole reads a stream from its first record to its tail.
func (d *day) whole(g *generation, id string) error {
	x := g.begin()
	var next uint64
	for n := 0; ; n++ {
		req := &novapb.ReadRequest{Bucket: g.bucket, Stream: g.name, StreamId: id}
		if n > 0 {
			req.Start = &novapb.ReadRequest_Seq{Seq: next}
		}
		var res *novapb.ReadResponse
		err := d.try(func(ctx context.Context) (err error) {
			res, err = d.reads.Read(ctx, req)
			return err
		})
		if reason.Is(err, reason.Trimmed) && n > 0 {
			return errTrimmed
		}
		if err != nil {
			return err
		}
		if res.GetStreamId() != g.id {
			return fmt.Errorf("the answer is of %s", res.GetStreamId())
		}
		if n == 0 {
			x.first, x.told, next = res.GetFirstSeq(), time.Now(), res.GetFirstSeq()
		}
		last := int64(0)
		for _, record := range res.GetRecords() {
			if record.GetSeq() != next {
				return fmt.Errorf("record %d where %d should be (page %d from %d)", record.GetSeq(), next, n, x.first)
			}
			if !bytes.Equal(record.GetBody(), g.bodyOf(int(next))) {
				return fmt.Errorf("record %d is another: %d bytes, want %d", next, len(record.GetBody()), g.sizeOf(int(next)))
			}
			g.mu.Lock()
			if int(next) < len(g.times) && record.GetTimestamp() != g.times[next] {
				g.mu.Unlock()
				return fmt.Errorf("record %d is of %d, it was acknowledged as of %d", next, record.GetTimestamp(), g.times[next])
			}
			g.mu.Unlock()
			if record.GetTimestamp() < last {
				return fmt.Errorf("record %d is older than the one before it", next)
			}
			last = record.GetTimestamp()
			next++
		}
		x.tail = res.GetTail()
		if next >= x.tail {
			break
		}
		if len(res.GetRecords()) == 0 {
			return fmt.Errorf("an empty page at %d, the tail is %d", next, x.tail)
		}
	}
	return g.judge(x)
}

// seek looks for the first record at or after a time.
func (d *day) seek(g *generation, id string, r *rand.Rand) error {
	g.mu.Lock()
	if len(g.times) == 0 {
		g.mu.Unlock()
		return nil
	}
	i := r.IntN(len(g.times))
	at := g.times[i] + r.Int64N(3) - 1
	g.mu.Unlock()
	var res *novapb.ReadResponse
	err := d.try(func(ctx context.Context) (err error) {
		res, err = d.reads.Read(ctx, &novapb.ReadRequest{
			Bucket: g.bucket, Stream: g.name, StreamId: id, Start: &novapb.ReadRequest_Timestamp{Timestamp: at},
			CountPresence: &novapb.ReadRequest_Count{Count: 1},
		})
		return err
	})
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	want := max(uint64(g.at(time.UnixMilli(at))), res.GetFirstSeq())
	if want >= res.GetTail() {
		if len(res.GetRecords()) != 0 {
			return fmt.Errorf("seek %d: found %v, there is nothing so late", at, res.GetRecords()[0].GetSeq())
		}
		return nil
	}
	if len(res.GetRecords()) != 1 || res.GetRecords()[0].GetSeq() != want {
		return fmt.Errorf("seek %d: found %d records, next %d, want record %d of [%d, %d)", at, len(res.GetRecords()), res.GetNextSeq(), want, res.GetFirstSeq(), res.GetTail())
	}
	return nil
}

// live lets a time pass in which the constellation is used.
func (d *day) live(seed uint64, length time.Duration) {
	var all sync.WaitGroup
	for i := range 3 {
		r := rand.New(rand.NewPCG(seed, 100+uint64(i)))
		all.Go(func() { d.readAll(r) })
	}
	all.Go(func() { d.trouble(rand.New(rand.NewPCG(seed, 99))) })
	d.write(rand.New(rand.NewPCG(seed, 98)), length)
	d.over.Store(true)
	all.Wait()
}

// write appends, trims, deletes and makes again, minute by minute.
func (d *day) write(r *rand.Rand, length time.Duration) {
	const tick = time.Minute
	for end := time.Now().Add(length); time.Now().Before(end); {
		now := time.Now()
		var due []*slot
		for _, s := range d.slots {
			switch {
			case s.now.Load() == nil:
				if now.After(s.dead) {
					s.mu.Lock()
					d.create(s)
					s.mu.Unlock()
				}
			case !now.Before(s.next) && (s.quietAfter == 0 || now.Sub(s.begun) < s.quietAfter):
				due = append(due, s)
			}
		}
		d.each(due, func(s *slot) {
			for !s.next.After(now) && s.now.Load() != nil && !d.t.Failed() {
				for range s.burst {
					d.append(s)
				}
				s.next = s.next.Add(s.every/2 + time.Duration(s.rand.Int64N(int64(s.every))))
			}
			if s.next.Before(now) {
				s.next = now
			}
		})
		if r.IntN(4) == 0 {
			d.trim(d.slots[r.IntN(len(d.slots))])
		}
		if r.IntN(10) == 0 {
			d.remove(d.slots[r.IntN(len(d.slots))])
		}
		if d.t.Failed() {
			return
		}
		time.Sleep(time.Until(now.Add(tick)))
	}
}

// readAll reads streams until the day is over.
func (d *day) readAll(r *rand.Rand) {
	for !d.over.Load() && !d.t.Failed() {
		time.Sleep(time.Duration(r.Int64N(int64(2 * time.Minute))))
		s := d.slots[r.IntN(len(d.slots))]
		if r.IntN(3) == 0 {
			s = d.slots[r.IntN(bucketCount*7)] // those that are written most are among them
		}
		d.look(s, r, r.IntN(3) == 0)
	}
}

// trouble has processes end, in order or not, and come back.
func (d *day) trouble(r *rand.Rand) {
	ids := []string{
		"chain-writer-0", "chain-writer-1", "sequencer-0", "sequencer-1", "settler-0", "settler-1", "reaper-0", "reaper-1",
	}
	for i := 0; ; i++ {
		if i%len(ids) == 0 {
			r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		}
		wait := time.Now().Add(20*time.Minute + time.Duration(r.Int64N(int64(40*time.Minute))))
		for time.Now().Before(wait) {
			time.Sleep(time.Minute)
			if d.over.Load() || d.t.Failed() {
				return
			}
		}
		id, dead := ids[i%len(ids)], r.IntN(2) == 0
		d.troubles.Add(1)
		d.replace(id, dead, r.Int64N(60), time.Duration(r.Int64N(int64(40*time.Second))), time.Duration(r.Int64N(int64(time.Minute))))
	}
}
