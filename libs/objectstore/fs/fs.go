package fs

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nova-stream/nova/libs/objectstore"
)

// Store is an objectstore.Store; make one with Open.
type Store struct {
	root    string
	disk    disk
	folders *folders
	lock    *os.File      // flock, until Close
	home    iofs.FileInfo // of objects/, at Open
	staged  atomic.Uint64
	seed    maphash.Seed

	// keys are the locks of PutIfMatch's compare and rename, and of Delete,
	// by hash of the key; never held for a sync.
	keys [64]sync.Mutex

	// alive is held for reading by each call; Close waits for them, as the
	// next process may remove our temporary files.
	alive  sync.RWMutex
	closed bool
}

var _ objectstore.Store = (*Store)(nil)

// Open opens the store in dir, making it and the folders above if need be. It
// fails, saying what to do, if another process (or another Store of this one)
// has it open.
func Open(dir string) (*Store, error) { return open(dir, realDisk{}) }

func open(dir string, disk disk) (*Store, error) {
	root, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("objectstore/fs: open %s: %w", dir, err)
	}
	s := &Store{root: root, disk: disk, seed: maphash.MakeSeed()}
	s.folders = newFolders(disk, func(folder string) string { return s.path(folder) })
	if err := s.prepare(); err != nil {
		if s.lock != nil {
			_ = s.lock.Close()
		}
		return nil, fmt.Errorf("objectstore/fs: open %s: %w", dir, err)
	}
	return s, nil
}

func (s *Store) prepare() error {
	for _, folder := range []string{s.path(""), filepath.Join(s.root, "tmp")} {
		if err := os.MkdirAll(folder, dirPerm); err != nil {
			return fmt.Errorf("%w: make the directory writable for user id %d, or choose another", err, os.Geteuid())
		}
	}
	var err error
	if s.lock, err = os.OpenFile(filepath.Join(s.root, "lock"), os.O_RDWR|os.O_CREATE, filePerm); err != nil {
		return fmt.Errorf("%w: make it writable for user id %d", err, os.Geteuid())
	}
	if err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w: another process uses the directory: stop it, or choose another directory", s.lock.Name(), err)
	}
	if err := s.disk.syncDir(s.root); err != nil {
		return fmt.Errorf("%w: %s must be on a file system that can sync directories", err, s.root)
	}
	// Whoever made the directories above may not have synced them. Those we may
	// not read, or that lie on another kind of file system, were not made by us.
	for up := filepath.Dir(s.root); ; up = filepath.Dir(up) {
		err := s.disk.syncDir(up)
		if err != nil && !errors.Is(err, iofs.ErrPermission) && !errors.Is(err, syscall.EINVAL) &&
			!errors.Is(err, syscall.EROFS) && !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		if up == filepath.Dir(up) {
			break
		}
	}
	if s.home, err = os.Stat(s.path("")); err != nil {
		return err
	}
	left, err := os.ReadDir(filepath.Join(s.root, "tmp"))
	if err != nil {
		return err
	}
	for _, e := range left {
		if err := s.disk.unlink(filepath.Join(s.root, "tmp", e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// Close implements objectstore.Store. It waits for the calls at work.
func (s *Store) Close() error {
	s.alive.Lock()
	defer s.alive.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.lock.Close()
}

// begin starts a call; end ends it if there is no error.
func (s *Store) begin(ctx context.Context, op string, keys ...string) error {
	for _, key := range keys {
		if err := objectstore.CheckKey(op, key); err != nil {
			return err
		}
	}
	named := strings.Join(keys[:min(len(keys), 1)], "")
	if err := objectstore.Expired(ctx, op, named); err != nil {
		return err
	}
	s.alive.RLock()
	if s.closed {
		s.alive.RUnlock()
		return objectstore.Fail(op, named, objectstore.ErrPermanent, "the store is closed")
	}
	return nil
}

func (s *Store) end() { s.alive.RUnlock() }

// path returns where the file of a key, or a folder of keys, is.
func (s *Store) path(key string) string {
	return filepath.Join(s.root, "objects", filepath.FromSlash(key))
}

func split(key string) (dir, name string) {
	i := strings.LastIndexByte(key, '/')
	return key[:max(i, 0)], key[i+1:]
}

func (s *Store) keyLock(key string) *sync.Mutex {
	return &s.keys[maphash.String(s.seed, key)%uint64(len(s.keys))]
}

// version returns the ETag of a file.
func version(fi iofs.FileInfo) objectstore.ETag {
	var inode uint64
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		inode = st.Ino
	}
	return objectstore.ETag(fmt.Sprintf("%x-%x-%x", fi.Size(), fi.ModTime().UnixNano(), inode))
}

// lookup returns the object's file, or nil if there is none.
func (s *Store) lookup(key string) (iofs.FileInfo, error) {
	fi, err := find(s, func() (iofs.FileInfo, error) { return os.Lstat(s.path(key)) })
	if absent(err) {
		return nil, nil
	}
	return fi, err
}

// find looks for a file. A name that is not found is absent only if objects/ is
// where it was at Open; else the error is errAway.
func find[T any](s *Store, look func() (T, error)) (T, error) {
	v, err := look()
	if !absent(err) {
		return v, err
	}
	if err := s.present(); err != nil {
		return v, err
	}
	return look() // objects/ may have come back just now
}

// present returns an error if objects/ is not where it was at Open: then nothing
// is known of any name.
func (s *Store) present() error {
	fi, err := os.Stat(s.path(""))
	switch {
	case absent(err):
		return fmt.Errorf("%s: %w", s.path(""), errAway)
	case err == nil && !os.SameFile(fi, s.home):
		return fmt.Errorf("%s: %w: another directory is in its place", s.path(""), errAway)
	}
	return err
}

// absent: no file of that name, also because a folder of it is a file.
func absent(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR)
}

// settle makes durable what is visible under key before the caller is told.
func (s *Store) settle(key string) error {
	dir, name := split(key)
	if s.folders.settled(dir, name) {
		return nil
	}
	at := s.folders.enter(dir)
	defer s.folders.leave(dir, false)
	if err := s.folders.settle(dir, at); err != nil && !absent(err) {
		return err
	}
	return nil
}

// told returns the answer kind about a visible object once it is durable.
func (s *Store) told(op, key string, kind error) error {
	if err := s.settle(key); err != nil {
		return fail(op, key, err)
	}
	return objectstore.Fail(op, key, kind, "")
}

// PutIfAbsent implements objectstore.Store.
func (s *Store) PutIfAbsent(ctx context.Context, key string, body []byte) (etag objectstore.ETag, err error) {
	const op = "PutIfAbsent"
	if err := s.begin(ctx, op, key); err != nil {
		return "", err
	}
	defer s.end()
	dir, name := split(key)
	at := s.folders.enter(dir)
	defer func() { s.folders.leave(dir, err != nil) }()

	if err := s.taken(op, key); err != nil {
		return "", err
	}
	staged, err := s.stage(body, time.Time{})
	if err != nil {
		return "", fail(op, key, err)
	}
	defer s.disk.unlink(staged.path) //nolint:errcheck // Open removes it
	if err := s.folders.heal(dir, at); err != nil && !absent(err) {
		return "", fail(op, key, err)
	}
	if err := objectstore.Expired(ctx, op, key); err != nil {
		return "", err
	}
	if err := s.folders.make(dir, at); err != nil {
		return "", fail(op, key, err)
	}
	s.folders.changing(at, name)
	err = s.disk.link(staged.path, s.path(key))
	s.folders.changed(at, name, err == nil || errors.Is(err, syscall.EIO))
	if errors.Is(err, syscall.EEXIST) {
		if err := s.taken(op, key); err != nil {
			return "", err
		}
		// Deleted since; it was there.
		return "", s.told(op, key, objectstore.ErrExists)
	}
	if err != nil {
		return "", fail(op, key, err)
	}
	if err := s.folders.settle(dir, at); err != nil {
		return "", fail(op, key, err)
	}
	return staged.etag, nil
}

// taken returns ErrExists if key is taken, ErrPermanent if it is a folder.
func (s *Store) taken(op, key string) error {
	fi, err := s.lookup(key)
	switch {
	case err != nil:
		return fail(op, key, err)
	case fi == nil:
		return nil
	case fi.IsDir():
		return objectstore.Fail(op, key, objectstore.ErrPermanent, "the key is a folder of other objects")
	}
	return s.told(op, key, objectstore.ErrExists)
}

// PutIfMatch implements objectstore.Store.
func (s *Store) PutIfMatch(ctx context.Context, key string, body []byte, etag objectstore.ETag) (_ objectstore.ETag, err error) {
	const op = "PutIfMatch"
	if err := s.begin(ctx, op, key); err != nil {
		return "", err
	}
	defer s.end()
	dir, name := split(key)
	at := s.folders.enter(dir)
	defer func() { s.folders.leave(dir, err != nil) }()

	old, err := s.lookup(key)
	if err != nil {
		return "", fail(op, key, err)
	}
	if old == nil || old.IsDir() || version(old) != etag {
		return "", s.told(op, key, objectstore.ErrMismatch)
	}
	staged, err := s.stage(body, old.ModTime())
	if err != nil {
		return "", fail(op, key, err)
	}
	defer func() {
		if err != nil {
			_ = s.disk.unlink(staged.path) // Open removes it otherwise
		}
	}()
	if err := s.folders.heal(dir, at); err != nil && !absent(err) {
		return "", fail(op, key, err)
	}
	if err := objectstore.Expired(ctx, op, key); err != nil {
		return "", err
	}
	matched, err := s.replace(key, name, at, staged.path, etag)
	if err != nil {
		return "", fail(op, key, err)
	}
	if !matched {
		return "", s.told(op, key, objectstore.ErrMismatch)
	}
	if err := s.folders.settle(dir, at); err != nil {
		return "", fail(op, key, err)
	}
	return staged.etag, nil
}

// replace renames staged to the key's file if that is still version etag.
func (s *Store) replace(key, name string, at *folder, staged string, etag objectstore.ETag) (matched bool, err error) {
	lock := s.keyLock(key)
	lock.Lock()
	defer lock.Unlock()
	fi, err := s.lookup(key)
	if err != nil || fi == nil || version(fi) != etag {
		return false, err
	}
	s.folders.changing(at, name)
	err = s.disk.rename(staged, s.path(key))
	s.folders.changed(at, name, err == nil || errors.Is(err, syscall.EIO))
	return err == nil, err
}

type staged struct {
	path string
	etag objectstore.ETag
}

// stage writes body to a durable temporary file, modified later than after.
func (s *Store) stage(body []byte, after time.Time) (staged, error) {
	path := filepath.Join(s.root, "tmp", strconv.FormatUint(s.staged.Add(1), 10))
	f, err := s.disk.create(path)
	if err != nil {
		return staged{}, err
	}
	fi, err := s.fill(f, body, after)
	// An error of close is one of writing on file systems that write late.
	if err = errors.Join(err, f.Close()); err != nil {
		_ = s.disk.unlink(path) // Open removes it otherwise
		return staged{}, err
	}
	return staged{path: path, etag: version(fi)}, nil
}

func (s *Store) fill(f *os.File, body []byte, after time.Time) (iofs.FileInfo, error) {
	if err := s.disk.write(f, body); err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	// A file system may keep times to the second or two only.
	for _, step := range []time.Duration{time.Nanosecond, 2 * time.Second} {
		if err != nil || fi.ModTime().After(after) {
			break
		}
		if err := s.disk.chtimes(f.Name(), after.Add(step)); err != nil {
			return nil, err
		}
		fi, err = f.Stat()
	}
	if err != nil {
		return nil, err
	}
	if !fi.ModTime().After(after) {
		return nil, fmt.Errorf("%s: the file system keeps no modification time later than %v", f.Name(), after)
	}
	return fi, s.disk.sync(f)
}

// Get implements objectstore.Store.
func (s *Store) Get(ctx context.Context, key string) (objectstore.Object, error) {
	return s.read(ctx, "Get", key, nil)
}

// GetRange implements objectstore.Store.
func (s *Store) GetRange(ctx context.Context, key string, r objectstore.Range) (objectstore.Object, error) {
	if err := r.Check("GetRange", key); err != nil {
		return objectstore.Object{}, err
	}
	return s.read(ctx, "GetRange", key, &r)
}

func (s *Store) read(ctx context.Context, op, key string, r *objectstore.Range) (objectstore.Object, error) {
	if err := s.begin(ctx, op, key); err != nil {
		return objectstore.Object{}, err
	}
	defer s.end()
	f, err := find(s, func() (*os.File, error) { return os.Open(s.path(key)) })
	if absent(err) {
		return objectstore.Object{}, objectstore.Fail(op, key, objectstore.ErrNotFound, "")
	}
	if err != nil {
		return objectstore.Object{}, fail(op, key, err)
	}
	defer f.Close() //nolint:errcheck // nothing was written through it
	fi, err := f.Stat()
	if err != nil {
		return objectstore.Object{}, fail(op, key, err)
	}
	if fi.IsDir() {
		return objectstore.Object{}, objectstore.Fail(op, key, objectstore.ErrNotFound, "")
	}
	if err := s.settle(key); err != nil {
		return objectstore.Object{}, fail(op, key, err)
	}
	start, end := int64(0), fi.Size()
	if r != nil {
		if start, end, err = r.Resolve(op, key, fi.Size()); err != nil {
			return objectstore.Object{}, err
		}
	}
	body := make([]byte, end-start)
	// Fewer bytes than the file had a moment ago: somebody cut it. Never short.
	if _, err := io.ReadFull(io.NewSectionReader(f, start, end-start), body); err != nil {
		return objectstore.Object{}, fail(op, key, &iofs.PathError{Op: "read", Path: f.Name(), Err: err})
	}
	if err := objectstore.Expired(ctx, op, key); err != nil {
		return objectstore.Object{}, err
	}
	return objectstore.Object{Body: body, ETag: version(fi), Size: fi.Size()}, nil
}

// Delete implements objectstore.Store. A deleted object does not come back, also
// not after a loss of power; keys of one folder share one sync.
func (s *Store) Delete(ctx context.Context, keys ...string) error {
	const op = "Delete"
	if err := s.begin(ctx, op, keys...); err != nil {
		return err
	}
	defer s.end()
	byFolder := map[string][]string{}
	for _, key := range keys {
		dir, _ := split(key)
		byFolder[dir] = append(byFolder[dir], key)
	}
	for dir, keys := range byFolder {
		if err := objectstore.Expired(ctx, op, keys[0]); err != nil {
			return err
		}
		if key, err := s.deleteIn(dir, keys); err != nil {
			return fail(op, key, err)
		}
	}
	return nil
}

func (s *Store) deleteIn(dir string, keys []string) (string, error) {
	at := s.folders.enter(dir)
	defer s.folders.leave(dir, true)
	for _, key := range keys {
		if err := s.unlink(key, at); err != nil {
			return key, err
		}
	}
	for _, key := range keys {
		if _, name := split(key); s.folders.settled(dir, name) {
			continue // not there, and known not to be
		}
		if err := s.folders.settle(dir, at); err != nil && !absent(err) {
			return key, err
		}
		break
	}
	return "", nil
}

func (s *Store) unlink(key string, at *folder) error {
	_, name := split(key)
	lock := s.keyLock(key)
	lock.Lock()
	defer lock.Unlock()
	s.folders.changing(at, name)
	err := s.disk.unlink(s.path(key))
	s.folders.changed(at, name, err == nil || errors.Is(err, syscall.EIO))
	if absent(err) {
		return s.present()
	}
	// Linux says EISDIR for a folder, POSIX EPERM.
	if errors.Is(err, syscall.EISDIR) || errors.Is(err, syscall.EPERM) {
		if fi, statErr := s.lookup(key); statErr == nil && (fi == nil || fi.IsDir()) {
			return nil
		}
	}
	return err
}
