// Package bbolt is the durable metastore of one process: one bbolt file in a
// directory (`novad --dir`).
//
// Invariants:
//   - A nil error from a write means the row was fsynced.
//   - One goroutine, the committer, writes. Writes that wait while it commits
//     share the next transaction and its fsyncs (group commit); an idle store
//     adds no delay. Each write is checked against the rows as the writes
//     before it in the same transaction left them.
//   - When a commit fails, every write of its batch is answered ErrUnavailable,
//     refusals included: what they were judged by may not have survived.
//   - A version is the sequence of the rows' bucket. It is stored with the
//     rows, so it is never given twice.
//   - After a failed fsync the kernel may call pages clean that never reached
//     the disk. The file is then not trusted: before the next write its rows
//     are copied to a new file, which takes its place.
//   - Ephemeral rows are those of the process that holds the file; opening the
//     file removes its predecessor's.
package bbolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/metastore/internal/hub"
)

const (
	// FileName is the database in Config.Dir.
	FileName = "metastore.db"
	// format is the version of the layout below.
	format = 1
	// versionBytes precede the value of a row: its version, big endian.
	versionBytes = 8
	// DefaultLockTimeout is how long Open waits for a file another process holds.
	DefaultLockTimeout = time.Second
)

// The buckets of the file. Rows and ephemeral have the keys of rowKey; about
// holds the format version.
var (
	rowsBucket      = []byte("rows")
	ephemeralBucket = []byte("ephemeral") // keys of ephemeral rows, no values
	aboutBucket     = []byte("about")
	formatKey       = []byte("format")
)

// Config says where the store lives.
type Config struct {
	// Dir is the directory of the file; it is made when it is not there.
	Dir string
	// LockTimeout is how long to wait for the file's lock; 0 means DefaultLockTimeout.
	LockTimeout time.Duration
	// Log may be nil.
	Log *slog.Logger
}

// Stats counts what the committer did since Open.
type Stats struct {
	Batches uint64 // transactions committed: two fsyncs each
	Writes  uint64 // rows changed by them
	Failed  uint64 // transactions that failed
}

// Store is a metastore in one file.
type Store struct {
	dir     string
	log     *slog.Logger
	timeout time.Duration
	hub     *hub.Hub

	// commit is (*bolt.Tx).Commit; a test replaces it to see a failed fsync.
	commit func(*bolt.Tx) error

	queue    chan *write   // not buffered: the writers themselves are the queue
	quit     chan struct{} // closed by Close
	stopped  chan struct{} // closed when the committer is gone
	closing  sync.Once
	closeErr error

	mu    sync.RWMutex // guards what follows
	db    *bolt.DB     // replaced by heal only
	stats Stats
}

var _ metastore.Store = (*Store)(nil)

// Open opens or makes the store of a directory. A directory that another
// process uses is ErrUnavailable.
func Open(cfg Config) (*Store, error) {
	if cfg.Dir == "" {
		return nil, fmt.Errorf("open metastore: %w: no directory", metastore.ErrInvalid)
	}
	if cfg.LockTimeout == 0 {
		cfg.LockTimeout = DefaultLockTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Store{
		dir: cfg.Dir, log: cfg.Log, timeout: cfg.LockTimeout, hub: hub.New(cfg.Log),
		commit: (*bolt.Tx).Commit,
		queue:  make(chan *write), quit: make(chan struct{}), stopped: make(chan struct{}),
	}
	if err := makeDir(s.dir); err != nil {
		return nil, fmt.Errorf("open metastore: make directory: %w: %w", metastore.ErrUnavailable, err)
	}
	db, err := s.openLocked()
	if err != nil {
		return nil, err
	}
	if err := s.prepare(db); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.db = db
	go s.run()
	return s, nil
}

// openLocked opens the file and returns holding its lock. heal may have put
// another file in its place while we waited: then the lock is of a file that
// nobody will ever open again, and we start over.
func (s *Store) openLocked() (*bolt.DB, error) {
	path := filepath.Join(s.dir, FileName)
	deadline := time.Now().Add(s.timeout)
	for {
		if err := s.makeFile(path); err != nil {
			return nil, fmt.Errorf("make metastore %s: %w: %w", path, metastore.ErrUnavailable, err)
		}
		if err := checkSize(path, max(time.Until(deadline), time.Millisecond)); err != nil && !errors.Is(err, bolterrors.ErrTimeout) {
			return nil, fmt.Errorf("open metastore %s: %w: %w%s", path, metastore.ErrUnavailable, err, advice(err))
		}
		db, file, err := openFile(path, max(time.Until(deadline), time.Millisecond))
		if errors.Is(err, bolterrors.ErrTimeout) {
			return nil, fmt.Errorf("open metastore: %w: another process uses %s (its lock was not free within %v)", metastore.ErrUnavailable, s.dir, s.timeout)
		}
		if err != nil {
			return nil, fmt.Errorf("open metastore %s: %w: %w%s", path, metastore.ErrUnavailable, err, advice(err))
		}
		if sameFile(path, file) {
			return db, nil
		}
		if err := db.Close(); err != nil {
			return nil, fmt.Errorf("open metastore %s: close replaced file: %w: %w", path, metastore.ErrUnavailable, err)
		}
	}
}

// openFile opens a bbolt file and returns the os.File whose lock it holds.
func openFile(path string, timeout time.Duration) (*bolt.DB, *os.File, error) {
	var file *os.File
	db, err := bolt.Open(path, 0o600, &bolt.Options{
		Timeout:      timeout,
		FreelistType: bolt.FreelistMapType,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(name, flag, mode)
			file = f
			return f, err
		},
	})
	return db, file, err
}

func sameFile(path string, file *os.File) bool {
	named, err := os.Stat(path)
	if err != nil {
		return false
	}
	open, err := file.Stat()
	return err == nil && os.SameFile(named, open)
}

// prepare makes the buckets of a new file, refuses a foreign one, and removes
// what the process before us left behind: its ephemeral rows and the copy of a
// heal it did not finish.
func (s *Store) prepare(db *bolt.DB) error {
	path := filepath.Join(s.dir, FileName)
	if err := os.Remove(s.copyPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("open metastore %s: remove unfinished copy: %w: %w", path, metastore.ErrUnavailable, err)
	}
	if err := s.removeUnfinished(); err != nil {
		return fmt.Errorf("open metastore %s: remove unfinished file: %w: %w", path, metastore.ErrUnavailable, err)
	}
	err := db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{rowsBucket, ephemeralBucket, aboutBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		about := tx.Bucket(aboutBucket)
		if v := about.Get(formatKey); v == nil {
			if err := about.Put(formatKey, []byte{format}); err != nil {
				return err
			}
		} else if len(v) != 1 || v[0] != format {
			return fmt.Errorf("format %v is not %d, the one this program reads", v, format)
		}
		return dropEphemeral(tx)
	})
	if err == nil {
		err = syncDir(s.dir) // a new file's name must survive as well
	}
	if err != nil {
		return fmt.Errorf("open metastore %s: %w: %w", path, metastore.ErrUnavailable, err)
	}
	return nil
}

func dropEphemeral(tx *bolt.Tx) error {
	if err := tx.Bucket(ephemeralBucket).ForEach(func(k, _ []byte) error {
		return tx.Bucket(rowsBucket).Delete(k)
	}); err != nil {
		return err
	}
	if err := tx.DeleteBucket(ephemeralBucket); err != nil {
		return err
	}
	_, err := tx.CreateBucket(ephemeralBucket)
	return err
}

// makeDir makes dir and its missing parents, and fsyncs what names them.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	parent := filepath.Dir(filepath.Clean(dir))
	if parent != dir {
		if err := makeDir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return syncDir(parent)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Stats returns the counters.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.stats
}

// Close answers the writes under way, then closes the file. Writes that were
// not yet taken up fail with ErrClosed, without effect.
func (s *Store) Close() error {
	s.closing.Do(func() {
		close(s.quit)
		<-s.stopped
		s.hub.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.db.Close(); err != nil {
			s.closeErr = fmt.Errorf("close metastore %s: %w: %w", s.dir, metastore.ErrUnavailable, err)
		}
	})
	return s.closeErr
}

// rowKey orders rows by partition, then path: 0 is below every byte of either.
func rowKey(partition, path string) []byte {
	k := make([]byte, 0, len(partition)+1+len(path))
	k = append(k, partition...)
	k = append(k, 0)
	return append(k, path...)
}

func decode(path string, v []byte) (metastore.Row, error) {
	if len(v) < versionBytes {
		return metastore.Row{}, fmt.Errorf("row %q of %d bytes is too short", path, len(v))
	}
	return metastore.Row{
		Path:    path,
		Value:   append([]byte(nil), v[versionBytes:]...),
		Version: metastore.Version(binary.BigEndian.Uint64(v)),
	}, nil
}

func encode(version metastore.Version, value []byte) []byte {
	b := make([]byte, versionBytes, versionBytes+len(value))
	binary.BigEndian.PutUint64(b, uint64(version))
	return append(b, value...)
}

// view runs a read and gives its error the shape every error has.
func (s *Store) view(ctx context.Context, op metastore.Op, name string, read func(*bolt.Bucket) error) error {
	if err := metastore.Ended(ctx, op, name); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	select {
	case <-s.quit:
		return metastore.Fail(op, name, metastore.ErrClosed, "")
	default:
	}
	err := s.db.View(func(tx *bolt.Tx) error { return read(tx.Bucket(rowsBucket)) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, metastore.ErrNotFound):
		return metastore.Fail(op, name, metastore.ErrNotFound, "")
	default:
		return metastore.Fail(op, name, metastore.ErrUnavailable, fmt.Sprintf("%s: %v", s.dir, err))
	}
}

// Get implements metastore.Store. It is never stale.
func (s *Store) Get(ctx context.Context, key metastore.Key) (row metastore.Row, err error) {
	if err := metastore.CheckKey(metastore.OpGet, key); err != nil {
		return row, err
	}
	err = s.view(ctx, metastore.OpGet, key.Path, func(b *bolt.Bucket) (err error) {
		v := b.Get(rowKey(key.Partition, key.Path))
		if v == nil {
			return metastore.ErrNotFound
		}
		row, err = decode(key.Path, v)
		return err
	})
	return row, err
}

// Floor implements metastore.Store. It is never stale.
func (s *Store) Floor(ctx context.Context, key metastore.Key, from string) (row metastore.Row, err error) {
	if err := metastore.CheckFloor(key, from); err != nil {
		return row, err
	}
	err = s.view(ctx, metastore.OpFloor, key.Path, func(b *bolt.Bucket) (err error) {
		low, high := rowKey(key.Partition, from), rowKey(key.Partition, key.Path)
		c := b.Cursor()
		k, v := c.Seek(high) // the first row at or above high
		if k == nil {
			k, v = c.Last()
		} else if string(k) != string(high) {
			k, v = c.Prev()
		}
		if k == nil || string(k) < string(low) {
			return metastore.ErrNotFound
		}
		row, err = decode(string(k[len(key.Partition)+1:]), v)
		return err
	})
	return row, err
}

// Range implements metastore.Store. It is never stale.
func (s *Store) Range(ctx context.Context, partition, from, to string, limit int) (rows []metastore.Row, err error) {
	if err := metastore.CheckRange(partition, from, to, limit); err != nil {
		return nil, err
	}
	err = s.view(ctx, metastore.OpRange, metastore.RangeName(from, to), func(b *bolt.Bucket) error {
		end := string(rowKey(partition, to))
		c := b.Cursor()
		for k, v := c.Seek(rowKey(partition, from)); k != nil && string(k) < end && len(rows) < limit; k, v = c.Next() {
			row, err := decode(string(k[len(partition)+1:]), v)
			if err != nil {
				return err
			}
			rows = append(rows, row)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// Watch implements metastore.Store: it reports the changes made through this
// Store, and there can be no other.
func (s *Store) Watch(ctx context.Context, prefix string) (<-chan metastore.Event, error) {
	if err := metastore.CheckWatch(prefix); err != nil {
		return nil, err
	}
	if err := metastore.Ended(ctx, metastore.OpWatch, prefix); err != nil {
		return nil, err
	}
	events, err := s.hub.Watch(ctx, prefix)
	if err != nil {
		return nil, metastore.Fail(metastore.OpWatch, prefix, metastore.ErrClosed, "")
	}
	return events, nil
}
