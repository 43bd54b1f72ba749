package fs

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"syscall"
	"time"

	"github.com/nova-stream/nova/libs/objectstore"
)

// disk is what changes the file system, one step per method, so that tests can
// fail each step and lose power between any two.
type disk interface {
	create(path string) (*os.File, error)
	write(f *os.File, body []byte) error
	chtimes(path string, mtime time.Time) error
	sync(f *os.File) error
	link(from, to string) error
	rename(from, to string) error
	unlink(path string) error // never a folder
	rmdir(path string) error  // only an empty folder
	mkdir(path string) error
	syncDir(path string) error
}

type realDisk struct{}

const (
	filePerm = 0o640
	dirPerm  = 0o750
)

func (realDisk) create(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, filePerm)
}
func (realDisk) write(f *os.File, body []byte) error { _, err := f.Write(body); return err }
func (realDisk) chtimes(path string, mtime time.Time) error {
	return os.Chtimes(path, time.Time{}, mtime)
}
func (realDisk) sync(f *os.File) error        { return f.Sync() }
func (realDisk) link(from, to string) error   { return os.Link(from, to) }
func (realDisk) rename(from, to string) error { return os.Rename(from, to) }
func (realDisk) mkdir(path string) error      { return os.Mkdir(path, dirPerm) }
func (realDisk) unlink(path string) error     { return retried("unlink", path, syscall.Unlink) }
func (realDisk) rmdir(path string) error      { return retried("rmdir", path, syscall.Rmdir) }

// retried calls a system call that os.Remove would choose for itself: the
// wrong one removes an object that lies where a folder was expected.
func retried(op, path string, call func(string) error) error {
	for {
		err := call(path)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EINTR) {
			return &iofs.PathError{Op: op, Path: path, Err: err}
		}
	}
}

func (realDisk) syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // nothing was written through it
	return d.Sync()
}

// errAway: objects/ is not where it was at Open.
var errAway = errors.New("the directory of the objects is gone")

// fail turns an error of the file system into one of the store: it names the
// path (the os package puts it in) and says what to do.
func fail(op, key string, err error) error {
	kind, do := objectstore.ErrUnavailable, ""
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		do = "free space or inodes on its file system, or raise the quota; writes go on by themselves then"
	case errors.Is(err, syscall.EFBIG):
		do = "raise the limit of file sizes (ulimit -f); writes go on by themselves then"
	case errors.Is(err, syscall.ENOENT), errors.Is(err, errAway):
		do = "the directory was moved away or its file system unmounted: bring it back; all goes on by itself then"
	case errors.Is(err, syscall.EROFS):
		do = "its file system is read-only, often after a disk error: look at the kernel log, repair, remount it read-write"
	case errors.Is(err, iofs.ErrPermission):
		do = fmt.Sprintf("let user id %d read and write the directory and all in it", os.Geteuid())
	case errors.Is(err, syscall.EIO):
		do = "the disk fails: look at the kernel log, replace it"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		do = "raise the limit of open files (ulimit -n)"
	case errors.Is(err, syscall.ENOTDIR):
		kind, do = objectstore.ErrPermanent, "a folder of the key is an object: no key is a folder of another"
	case errors.Is(err, syscall.ENAMETOOLONG):
		kind, do = objectstore.ErrPermanent, "the file system takes only shorter names"
	default:
		do = "look at the file system and the kernel log"
	}
	return objectstore.Fail(op, key, kind, "%w: %s", err, do)
}
