package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Lock is the exclusive use of a directory. The system gives it back when the
// process dies, however it dies: who holds it knows that no former process
// still works on the directory.
type Lock struct{ file *os.File }

// LockDir makes the directory and takes its lock file, "lock".
func LockDir(dir string) (*Lock, error) {
	advice := "; choose one that this user may write with --dir, or change its owner"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("--dir %s: cannot make the directory%s: %w", dir, advice, err)
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--dir %s: cannot write to the directory%s: %w", dir, advice, err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		// The holder's id is a hint only.
		held, _ := io.ReadAll(io.LimitReader(file, 20))
		_ = file.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("--dir %s: cannot lock it: %w", dir, err)
		}
		who := "another Nova process"
		if pid := strings.TrimSpace(string(held)); pid != "" {
			who += " (pid " + pid + ")"
		}
		return nil, fmt.Errorf("--dir %s is in use by %s: stop that one, or choose another directory", dir, who)
	}
	// Only for the message above.
	if err := errors.Join(file.Truncate(0), write(file, fmt.Sprintln(os.Getpid()))); err != nil {
		return nil, errors.Join(fmt.Errorf("--dir %s: cannot write to the directory; free space on its disk, or choose another: %w", dir, err), file.Close())
	}
	return &Lock{file}, nil
}

func write(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// Close gives the directory back.
func (l *Lock) Close() error { return l.file.Close() }
