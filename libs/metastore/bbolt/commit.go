package bbolt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	bolt "go.etcd.io/bbolt"

	"github.com/nova-stream/nova/libs/metastore"
)

// Limits of one transaction. They bound the memory of a batch and the time its
// first write waits for its last.
const (
	maxBatchWrites = 1024
	maxBatchBytes  = 16 << 20
)

// write is one Put, PutEphemeral or Delete on its way to the committer.
type write struct {
	ctx      context.Context
	op       metastore.Op
	key      metastore.Key
	value    []byte // a copy: the caller may be gone before we are done
	expected metastore.Version
	done     chan struct{} // closed when the fields below are set

	version metastore.Version
	err     error
}

// Put implements metastore.Store. When ctx ends first, the write may land.
func (s *Store) Put(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	return s.put(ctx, metastore.OpPut, key, value, expected)
}

// PutEphemeral implements metastore.Store. The row goes when the directory is
// opened again.
func (s *Store) PutEphemeral(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	return s.put(ctx, metastore.OpPutEphemeral, key, value, expected)
}

func (s *Store) put(ctx context.Context, op metastore.Op, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	if err := metastore.CheckPut(op, key, value, expected); err != nil {
		return 0, err
	}
	return s.submit(&write{ctx: ctx, op: op, key: key, value: append([]byte(nil), value...), expected: expected})
}

// Delete implements metastore.Store. When ctx ends first, the delete may land.
func (s *Store) Delete(ctx context.Context, key metastore.Key, expected metastore.Version) error {
	if err := metastore.CheckDelete(key, expected); err != nil {
		return err
	}
	_, err := s.submit(&write{ctx: ctx, op: metastore.OpDelete, key: key, expected: expected})
	return err
}

// submit hands the write to the committer and waits for its answer. Until the
// committer takes it up, giving up has no effect on the store.
func (s *Store) submit(w *write) (metastore.Version, error) {
	if err := metastore.Ended(w.ctx, w.op, w.key.Path); err != nil {
		return 0, err
	}
	w.done = make(chan struct{})
	select {
	case <-s.quit:
		return 0, metastore.Fail(w.op, w.key.Path, metastore.ErrClosed, "")
	default:
	}
	select {
	case s.queue <- w:
	case <-w.ctx.Done():
		return 0, metastore.Ended(w.ctx, w.op, w.key.Path)
	case <-s.quit:
		return 0, metastore.Fail(w.op, w.key.Path, metastore.ErrClosed, "")
	}
	select {
	case <-w.done:
		return w.version, w.err
	case <-w.ctx.Done():
		return 0, metastore.Ended(w.ctx, w.op, w.key.Path)
	}
}

// run is the committer. It ends when Close says so, with no write unanswered.
func (s *Store) run() {
	defer close(s.stopped)
	var suspect error // why the file is not trusted, if it is not
	failing := false
	for {
		var batch []*write
		select {
		case w := <-s.queue:
			batch = s.collect(w)
		case <-s.quit:
			return
		}
		err := suspect
		if suspect != nil {
			if healErr := s.heal(); healErr != nil {
				err = fmt.Errorf("after %w: copy the file: %w", suspect, healErr)
			} else {
				err, suspect = nil, nil
			}
		}
		if err == nil {
			if err = s.apply(batch); err != nil && mayHaveLostPages(err) {
				suspect = err
			}
		}
		s.answer(batch, err)
		if (err != nil) != failing { // log the turns, not every batch in between
			failing = err != nil
			if failing {
				s.log.Error("metastore cannot commit", "dir", s.dir, "error", err)
			} else {
				s.log.Info("metastore commits again", "dir", s.dir)
			}
		}
	}
}

// collect adds to w what is waiting now, without waiting for more.
func (s *Store) collect(w *write) []*write {
	batch, size := []*write{w}, len(w.value)
	for len(batch) < maxBatchWrites && size < maxBatchBytes {
		select {
		case w := <-s.queue:
			batch = append(batch, w)
			size += len(w.value)
		default:
			return batch
		}
	}
	return batch
}

// answer releases the writers, with err if the batch as a whole failed.
func (s *Store) answer(batch []*write, err error) {
	for _, w := range batch {
		if err != nil {
			w.version = 0
			w.err = metastore.Fail(w.op, w.key.Path, metastore.ErrUnavailable, fmt.Sprintf("%s: %v", filepath.Join(s.dir, FileName), err))
		}
		close(w.done)
	}
}

// apply runs a batch in one transaction and sets each write's own outcome.
func (s *Store) apply(batch []*write) (err error) {
	tx, err := s.db.Begin(true)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	var changed uint64
	for _, w := range batch {
		if w.err = metastore.Ended(w.ctx, w.op, w.key.Path); w.err != nil {
			continue // the writer is gone, and has been told nothing yet
		}
		did, err := w.apply(tx)
		if err != nil {
			return errors.Join(fmt.Errorf("apply: %w", err), tx.Rollback())
		}
		if did {
			changed++
		}
	}
	if changed == 0 {
		return tx.Rollback() // only refusals, judged by committed rows
	}
	err = s.commit(tx)
	s.mu.Lock()
	if err != nil {
		s.stats.Failed++
	} else {
		s.stats.Batches++
		s.stats.Writes += changed
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	for _, w := range batch {
		if w.err == nil {
			s.hub.Publish(metastore.Event{Path: w.key.Path, Deleted: w.op == metastore.OpDelete})
		}
	}
	return nil
}

// apply checks one write and performs it. A refusal is w.err; the returned
// error is the transaction's.
func (w *write) apply(tx *bolt.Tx) (changed bool, err error) {
	rows, ephemeral := tx.Bucket(rowsBucket), tx.Bucket(ephemeralBucket)
	k := rowKey(w.key.Partition, w.key.Path)
	found := metastore.Absent
	if v := rows.Get(k); v != nil {
		row, err := decode(w.key.Path, v)
		if err != nil {
			return false, err
		}
		found = row.Version
	}
	if w.op == metastore.OpDelete && found == metastore.Absent {
		w.err = metastore.Fail(w.op, w.key.Path, metastore.ErrNotFound, "")
		return false, nil
	}
	if found != w.expected {
		w.err = metastore.Conflict(w.op, w.key.Path, w.expected, found)
		return false, nil
	}
	if err := ephemeral.Delete(k); err != nil {
		return false, err
	}
	if w.op == metastore.OpDelete {
		return true, rows.Delete(k)
	}
	seq, err := rows.NextSequence()
	if err != nil {
		return false, err
	}
	w.version = metastore.Version(seq)
	if w.op == metastore.OpPutEphemeral {
		if err := ephemeral.Put(k, nil); err != nil {
			return false, err
		}
	}
	return true, rows.Put(k, encode(w.version, w.value))
}

// mayHaveLostPages reports whether a failed commit leaves doubt about pages
// already handed to the kernel. A write or resize that failed does not: bbolt
// goes back to the last good root and the pages it would have used are free. A
// failed fsync does (see "fsync's error reporting" in fsync(2)).
func mayHaveLostPages(err error) bool {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Op != "write"
	}
	var errno syscall.Errno
	return errors.As(err, &errno) || !strings.Contains(err.Error(), "file resize error")
}

func (s *Store) copyPath() string { return filepath.Join(s.dir, FileName+".new") }

// heal copies every row to a new file and puts it in the old one's place. The
// new file's lock is ours before it has the name, so that nobody gets between.
// A crash leaves the old file or the new one; both hold all that was
// acknowledged, as far as the disk gives it back.
func (s *Store) heal() error {
	path := s.copyPath()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	next, _, err := openFile(path, s.timeout)
	if err != nil {
		return err
	}
	if err := bolt.Compact(next, s.db, maxBatchBytes); err != nil {
		return errors.Join(err, next.Close(), os.Remove(path))
	}
	if err := os.Rename(path, filepath.Join(s.dir, FileName)); err != nil {
		return errors.Join(err, next.Close(), os.Remove(path))
	}
	s.mu.Lock()
	old := s.db
	s.db = next
	s.mu.Unlock()
	if err := old.Close(); err != nil {
		s.log.Warn("metastore: close the replaced file", "dir", s.dir, "error", err)
	}
	s.log.Warn("metastore file was rewritten after a failed fsync", "dir", s.dir)
	return syncDir(s.dir)
}
