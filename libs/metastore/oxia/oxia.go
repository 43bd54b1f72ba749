// Package oxia is the metastore of a fleet: an Oxia service, reached with its
// own client (github.com/oxia-db/oxia).
//
// Invariants:
//   - The version of a row is Oxia's version id, and every write is conditional
//     on it. Ids are given per shard and never twice; a partition stays in its
//     shard, so they never repeat for a path.
//   - Reads may be stale: a leader that was deposed a moment ago still answers.
//   - The client repeats a write whose reply it lost, so an own landed write may
//     come back as ErrConflict, which the contract of metastore allows.
//   - No call outlasts Config.RequestTimeout, and at most maxInFlight are under
//     way (I8): what the client owes us beyond that is waited for by nobody.
//
// What the client does and this package works around (v0.17.1):
//   - An abandoned Get blocks its shard's reads for ever: every answer is
//     received, also when its caller is gone.
//   - An ephemeral put blocks its caller until the session is there: it runs in
//     a goroutine like every call.
//   - After a shard was split or merged, a delete under way is sent to a shard
//     chosen without its partition key. A refused delete is therefore judged by
//     a read.
//   - Closing it leaves one goroutine asleep that would receive shard
//     assignments.
package oxia

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	client "github.com/oxia-db/oxia/oxia"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/metastore/internal/hub"
)

const (
	// DefaultRequestTimeout is how long a call may take.
	DefaultRequestTimeout = 10 * time.Second
	// DefaultSessionTimeout is how long ephemeral rows outlive a silent process.
	DefaultSessionTimeout = 15 * time.Second
	// maxInFlight bounds the calls the client works on.
	maxInFlight = 4096
	// linger is how long the client collects calls of a shard into one request.
	// It works on one request per shard at a time, so without it calls at once
	// would wait for each other's round trips.
	linger = time.Millisecond
)

// Config says where Oxia is.
type Config struct {
	// Address is "host:port" or "host:port/namespace"; the namespace is
	// "default" when none is named.
	Address string
	// Prefix sets the store's rows apart from others in the namespace. It is at
	// most metastore.MaxPrefixBytes of printable ASCII and does not count
	// against MaxKeyBytes.
	Prefix string
	// RequestTimeout limits every call; 0 means DefaultRequestTimeout.
	RequestTimeout time.Duration
	// SessionTimeout is that of ephemeral rows, in whole milliseconds; 0 means
	// DefaultSessionTimeout.
	SessionTimeout time.Duration
	// Log may be nil. The client itself logs to slog.Default().
	Log *slog.Logger
}

// Store is a metastore on Oxia.
type Store struct {
	client  client.AsyncClient
	keys    keys
	address string
	timeout time.Duration
	log     *slog.Logger
	hub     *hub.Hub

	slots chan struct{} // one per call under way
	quit  chan struct{} // closed when Close begins: callers leave
	gone  chan struct{} // closed when the client is closed: no more answers

	mu     sync.RWMutex // held for reading while a call starts, for writing by Close
	closed bool
	calls  sync.WaitGroup // calls under way, and the pump of notifications

	watching sync.Mutex // guards what follows; held while notifications start
	notes    client.Notifications
}

var _ metastore.Store = (*Store)(nil)

// Open connects to Oxia and returns when it has told its shards, within
// cfg.RequestTimeout.
func Open(cfg Config) (*Store, error) {
	address, namespace, named := strings.Cut(cfg.Address, "/")
	if address == "" || named && (namespace == "" || strings.Contains(namespace, "/")) {
		return nil, fmt.Errorf("open oxia: %w: address %q is not host:port[/namespace]", metastore.ErrInvalid, cfg.Address)
	}
	if !named {
		namespace = client.DefaultNamespace
	}
	if err := metastore.CheckPrefix(cfg.Prefix); err != nil {
		return nil, fmt.Errorf("open oxia: %w", err)
	}
	if cfg.RequestTimeout == 0 {
		cfg.RequestTimeout = DefaultRequestTimeout
	}
	if cfg.SessionTimeout == 0 {
		cfg.SessionTimeout = DefaultSessionTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c, err := client.NewAsyncClient(address,
		client.WithNamespace(namespace),
		client.WithBatchLinger(linger),
		client.WithRequestTimeout(cfg.RequestTimeout),
		client.WithSessionTimeout(cfg.SessionTimeout))
	if err != nil {
		return nil, fmt.Errorf("open oxia at %s: %w: no shards of namespace %q within %v: %s",
			address, metastore.ErrUnavailable, namespace, cfg.RequestTimeout, err.Error())
	}
	return &Store{
		client: c, keys: newKeys(cfg.Prefix), address: cfg.Address, timeout: cfg.RequestTimeout,
		log: cfg.Log, hub: hub.New(cfg.Log),
		slots: make(chan struct{}, maxInFlight), quit: make(chan struct{}), gone: make(chan struct{}),
	}, nil
}

// answer is what a call of the client came to.
type answer[T any] struct {
	value T
	err   error
}

// call runs ask in a goroutine and waits for it until ctx ends, the store
// closes or the timeout passes. ask gets a channel of answers from the client
// and must return when Store.gone is closed.
func call[T any](ctx context.Context, s *Store, op metastore.Op, name string, ask func() (T, error)) (T, error) {
	var none T
	if err := s.start(ctx, op, name); err != nil {
		return none, err
	}
	done := make(chan answer[T], 1)
	go func() {
		defer s.calls.Done()
		defer func() { <-s.slots }()
		// The client panics when no shard covers a key, as may be while shards
		// are being assigned.
		defer func() {
			if r := recover(); r != nil {
				done <- answer[T]{err: fmt.Errorf("oxia client: %v", r)}
			}
		}()
		value, err := ask()
		done <- answer[T]{value, err}
	}()
	timer := time.NewTimer(s.timeout)
	defer timer.Stop()
	select {
	case a := <-done:
		return a.value, s.explain(ctx, op, name, a.err)
	case <-ctx.Done():
		return none, metastore.Ended(ctx, op, name)
	case <-s.quit:
		return none, metastore.Fail(op, name, metastore.ErrClosed, "")
	case <-timer.C:
		return none, s.unavailable(op, name, fmt.Sprintf("no answer within %v", s.timeout))
	}
}

// start takes a slot and counts a call, or says why not.
func (s *Store) start(ctx context.Context, op metastore.Op, name string) error {
	if err := metastore.Ended(ctx, op, name); err != nil {
		return err
	}
	select {
	case <-s.quit:
		return metastore.Fail(op, name, metastore.ErrClosed, "")
	default:
	}
	timer := time.NewTimer(s.timeout)
	defer timer.Stop()
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return metastore.Ended(ctx, op, name)
	case <-s.quit:
		return metastore.Fail(op, name, metastore.ErrClosed, "")
	case <-timer.C:
		return s.unavailable(op, name, fmt.Sprintf("%d calls are under way, none ended within %v", maxInFlight, s.timeout))
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		<-s.slots
		return metastore.Fail(op, name, metastore.ErrClosed, "")
	}
	s.calls.Add(1)
	return nil
}

func (s *Store) unavailable(op metastore.Op, name, detail string) error {
	return metastore.Fail(op, name, metastore.ErrUnavailable, "oxia "+s.address+": "+detail)
}

// errGone: the client was closed before it answered.
var errGone = errors.New("client closed")

// explain maps an error of the client. Whatever is no answer is ErrUnavailable:
// a write may have landed.
func (s *Store) explain(ctx context.Context, op metastore.Op, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, client.ErrKeyNotFound):
		return metastore.Fail(op, name, metastore.ErrNotFound, "")
	case errors.Is(err, client.ErrUnexpectedVersionId):
		return metastore.Fail(op, name, metastore.ErrConflict, "")
	case errors.Is(err, errGone):
		return metastore.Fail(op, name, metastore.ErrClosed, "")
	case ctx.Err() != nil: // the reason why the client gave up
		return metastore.Ended(ctx, op, name)
	default:
		return s.unavailable(op, name, err.Error())
	}
}

// receive waits for the client's one answer.
func receive[T any](s *Store, ch <-chan T) (T, error) {
	select {
	case v := <-ch:
		return v, nil
	case <-s.gone:
		var none T
		return none, errGone
	}
}

// row makes a row of a record and refuses one from outside [from, to].
func (s *Store) row(partition, from, to string, r client.GetResult) (metastore.Row, error) {
	p, path, err := s.keys.parse(r.Key)
	if err != nil {
		return metastore.Row{}, err
	}
	if p != partition || path < from || path > to {
		return metastore.Row{}, fmt.Errorf("key %q is not within %q..%q of partition %q", r.Key, from, to, partition)
	}
	return metastore.Row{Path: path, Value: r.Value, Version: metastore.Version(r.Version.VersionId)}, nil
}

// partitionKey chooses the shard. It is never empty, which Oxia might take for
// none.
func partitionKey(partition string) client.BaseOption {
	return client.PartitionKey("p" + partition)
}

// Get implements metastore.Store. It may be stale.
func (s *Store) Get(ctx context.Context, key metastore.Key) (metastore.Row, error) {
	if err := metastore.CheckKey(metastore.OpGet, key); err != nil {
		return metastore.Row{}, err
	}
	return s.get(ctx, metastore.OpGet, key, key.Path)
}

// Floor implements metastore.Store. It may be stale.
func (s *Store) Floor(ctx context.Context, key metastore.Key, from string) (metastore.Row, error) {
	if err := metastore.CheckFloor(key, from); err != nil {
		return metastore.Row{}, err
	}
	return s.get(ctx, metastore.OpFloor, key, from, client.ComparisonFloor())
}

func (s *Store) get(ctx context.Context, op metastore.Op, key metastore.Key, from string, opts ...client.GetOption) (metastore.Row, error) {
	opts = append(opts, partitionKey(key.Partition))
	return call(ctx, s, op, key.Path, func() (metastore.Row, error) {
		r, err := receive(s, s.client.Get(s.keys.key(key.Partition, key.Path), opts...))
		if err == nil {
			err = r.Err
		}
		if err != nil {
			return metastore.Row{}, err
		}
		row, err := s.row(key.Partition, from, key.Path, r)
		if err != nil { // a floor below from, of another partition or not ours
			return metastore.Row{}, client.ErrKeyNotFound
		}
		return row, nil
	})
}

// Range implements metastore.Store. It may be stale.
func (s *Store) Range(ctx context.Context, partition, from, to string, limit int) ([]metastore.Row, error) {
	if err := metastore.CheckRange(partition, from, to, limit); err != nil {
		return nil, err
	}
	if from == to {
		return nil, s.idle(ctx, metastore.OpRange, metastore.RangeName(from, to))
	}
	return call(ctx, s, metastore.OpRange, metastore.RangeName(from, to), func() ([]metastore.Row, error) {
		// The server sends the whole range; ending the context stops it once we
		// have enough. The client then still wants its channel read to the end.
		ctx, cancel := context.WithTimeout(ctx, s.timeout)
		ch := s.client.RangeScan(ctx, s.keys.key(partition, from), s.keys.key(partition, to), partitionKey(partition))
		defer func() {
			cancel()
			for range ch {
			}
		}()
		var rows []metastore.Row
		for r := range ch {
			if r.Err != nil {
				return nil, r.Err
			}
			row, err := s.row(partition, from, to, r)
			if err != nil || row.Path == to {
				continue // a key of Oxia's own
			}
			if rows = append(rows, row); len(rows) == limit {
				break
			}
		}
		return rows, nil
	})
}

// idle is a call that has nothing to ask.
func (s *Store) idle(ctx context.Context, op metastore.Op, name string) error {
	select {
	case <-s.quit:
		return metastore.Fail(op, name, metastore.ErrClosed, "")
	default:
		return metastore.Ended(ctx, op, name)
	}
}

// Put implements metastore.Store.
func (s *Store) Put(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	return s.put(ctx, metastore.OpPut, key, value, expected)
}

// PutEphemeral implements metastore.Store. The row goes when the store closes,
// or Config.SessionTimeout after the process fell silent.
func (s *Store) PutEphemeral(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	return s.put(ctx, metastore.OpPutEphemeral, key, value, expected, client.Ephemeral())
}

func (s *Store) put(ctx context.Context, op metastore.Op, key metastore.Key, value []byte, expected metastore.Version, opts ...client.PutOption) (metastore.Version, error) {
	if err := metastore.CheckPut(op, key, value, expected); err != nil {
		return 0, err
	}
	opts = append(opts, partitionKey(key.Partition), client.ExpectedVersionId(int64(expected)))
	own := append([]byte(nil), value...) // the caller may be gone before the client is done
	return call(ctx, s, op, key.Path, func() (metastore.Version, error) {
		r, err := receive(s, s.client.Put(s.keys.key(key.Partition, key.Path), own, opts...))
		if err == nil {
			err = r.Err
		}
		return metastore.Version(r.Version.VersionId), err
	})
}

// Delete implements metastore.Store.
func (s *Store) Delete(ctx context.Context, key metastore.Key, expected metastore.Version) error {
	if err := metastore.CheckDelete(key, expected); err != nil {
		return err
	}
	_, err := call(ctx, s, metastore.OpDelete, key.Path, func() (struct{}, error) {
		answer, err := receive(s, s.client.Delete(s.keys.key(key.Partition, key.Path),
			partitionKey(key.Partition), client.ExpectedVersionId(int64(expected))))
		if err == nil {
			err = answer
		}
		return struct{}{}, err
	})
	if !errors.Is(err, metastore.ErrConflict) && !errors.Is(err, metastore.ErrNotFound) {
		return err
	}
	// Oxia refuses a row that is not there as a conflict, and a delete that was
	// sent to the wrong shard as either.
	row, getErr := s.get(ctx, metastore.OpDelete, key, key.Path)
	switch {
	case getErr != nil:
		return getErr // ErrNotFound, or no way to know
	case row.Version == expected:
		return s.unavailable(metastore.OpDelete, key.Path, "refused, but the version fits")
	default:
		return metastore.Conflict(metastore.OpDelete, key.Path, expected, row.Version)
	}
}

// Watch implements metastore.Store. The first one subscribes to all changes of
// the namespace, for as long as the store is open.
func (s *Store) Watch(ctx context.Context, prefix string) (<-chan metastore.Event, error) {
	if err := metastore.CheckWatch(prefix); err != nil {
		return nil, err
	}
	if _, err := call(ctx, s, metastore.OpWatch, prefix, func() (struct{}, error) {
		return struct{}{}, s.subscribe()
	}); err != nil {
		return nil, err
	}
	events, err := s.hub.Watch(ctx, prefix)
	if err != nil {
		return nil, metastore.Fail(metastore.OpWatch, prefix, metastore.ErrClosed, "")
	}
	return events, nil
}

// subscribe starts the notifications unless they run.
func (s *Store) subscribe() error {
	s.watching.Lock()
	defer s.watching.Unlock()
	if s.notes != nil {
		return nil
	}
	notes, err := s.client.GetNotifications()
	if err != nil {
		return err
	}
	s.notes = notes
	s.calls.Add(1) // the calling call is counted, so Close is not waiting yet
	go func() {
		defer s.calls.Done()
		for n := range notes.Ch() {
			_, path, err := s.keys.parse(n.Key)
			if err != nil {
				continue
			}
			s.hub.Publish(metastore.Event{Path: path, Deleted: n.Type == client.KeyDeleted})
		}
	}()
	return nil
}

// Close ends the watches, waits for what is under way, and ends the session of
// the ephemeral rows. It takes up to twice the request timeout when Oxia does
// not answer.
func (s *Store) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	if !closed {
		close(s.quit)
	}
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.hub.Close()
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		s.stopWatching()
		s.calls.Wait()
	}()
	timer := time.NewTimer(s.timeout)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
		s.log.Warn("oxia: calls are still under way at the end", "address", s.address, "waited", s.timeout)
	}
	err := s.client.Close()
	close(s.gone)
	if err != nil {
		return fmt.Errorf("close oxia at %s: %w: %s", s.address, metastore.ErrUnavailable, err.Error())
	}
	return nil
}

func (s *Store) stopWatching() {
	s.watching.Lock()
	defer s.watching.Unlock()
	if s.notes != nil {
		if err := s.notes.Close(); err != nil {
			s.log.Warn("oxia: end notifications", "address", s.address, "error", err)
		}
	}
}
