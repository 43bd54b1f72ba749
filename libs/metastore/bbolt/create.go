package bbolt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
)

// errCut means that the end of the file is missing. To touch its pages would end
// the process by SIGBUS.
var errCut = errors.New("the file is cut short")

// unfinished matches the files that makeFile gives no name.
const unfinished = FileName + ".init-*"

// makeFile makes an empty database if the file is not there. It gets its name
// when it is whole: a full disk or a crash at the first start leaves nothing that
// the next one stumbles over.
func (s *Store) makeFile(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.CreateTemp(s.dir, unfinished)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // prepare removes it
	if err := f.Close(); err != nil {
		return err
	}
	db, _, err := openFile(f.Name(), s.timeout) // which writes the first pages and syncs them
	if err != nil {
		return err
	}
	if err := db.Close(); err != nil {
		return err
	}
	err = os.Link(f.Name(), path)
	if errors.Is(err, os.ErrExist) {
		return nil // another process was faster
	}
	return err
}

// removeUnfinished removes what makeFile left in a crash.
func (s *Store) removeUnfinished() error {
	left, err := filepath.Glob(filepath.Join(s.dir, unfinished))
	if err != nil {
		return err
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// checkSize returns errCut if the file does not hold all its pages. It reads no
// page but the first two.
func checkSize(path string, timeout time.Duration) error {
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: timeout})
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // nothing was written
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return db.View(func(tx *bolt.Tx) error {
		if info.Size() < tx.Size() {
			return fmt.Errorf("%w: it has %d bytes and should have %d", errCut, info.Size(), tx.Size())
		}
		return nil
	})
}

// advice says what to do about a file that cannot be opened, unless the system
// says enough.
func advice(err error) string {
	var path *fs.PathError
	var errno syscall.Errno
	if errors.As(err, &path) || errors.As(err, &errno) {
		return ""
	}
	return "; the file is damaged, or not ours: put a copy of the whole directory in its place"
}
