package bbolt_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/metastore/bbolt"
)

// fullDiskEnv makes the test binary run fullDiskMain instead of the tests: the
// file size limit that stands for a full disk is one of the whole process.
const fullDiskEnv = "NOVA_TEST_FULL_DISK_DIR"

func TestFullDiskRefusesWritesUntilThereIsRoom(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), fullDiskEnv+"="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func fullDiskMain() int {
	dir := os.Getenv(fullDiskEnv)
	if err := errors.Join(startOnFullDisk(filepath.Join(dir, "new")), fillDisk(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// startOnFullDisk opens a new directory while there is room for less and less of
// the file, and then with room.
func startOnFullDisk(dir string) error {
	signal.Ignore(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	for _, room := range []uint64{10000, 4096, 1, 0} {
		full := limit
		full.Cur = room
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &full); err != nil {
			return err
		}
		if _, err := bbolt.Open(bbolt.Config{Dir: dir}); !errors.Is(err, metastore.ErrUnavailable) || !strings.Contains(err.Error(), "file too large") {
			return fmt.Errorf("open with room for %d bytes: %w", room, err)
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			return err
		}
	}
	s, err := bbolt.Open(bbolt.Config{Dir: dir})
	if err != nil {
		return fmt.Errorf("open with room, after starts without: %w", err)
	}
	if err := s.Close(); err != nil {
		return err
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		return fmt.Errorf("the starts left %v, %w", left, err)
	}
	return nil
}

func fillDisk(dir string) error {
	signal.Ignore(syscall.SIGXFSZ) // so that the write fails with EFBIG
	ctx := context.Background()
	s, err := bbolt.Open(bbolt.Config{Dir: dir})
	if err != nil {
		return err
	}
	info, err := os.Stat(filepath.Join(dir, "metastore.db"))
	if err != nil {
		return err
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	full := limit
	full.Cur = uint64(info.Size())
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &full); err != nil {
		return err
	}

	value := bytes.Repeat([]byte("x"), 16<<10)
	stored := 0
	for ; ; stored++ {
		_, err = s.Put(ctx, key(fmt.Sprintf("row-%06d", stored)), value, metastore.Absent)
		if err != nil {
			break
		}
		if stored > 100000 {
			return errors.New("the limit never struck")
		}
	}
	if !errors.Is(err, metastore.ErrUnavailable) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "file too large") {
		return fmt.Errorf("write to a full disk: %w, want ErrUnavailable with path and cause", err)
	}
	for i := range 3 {
		if _, err := s.Put(ctx, key(fmt.Sprintf("more-%d", i)), value, metastore.Absent); !errors.Is(err, metastore.ErrUnavailable) {
			return fmt.Errorf("write %d to a full disk: %w", i, err)
		}
	}
	if _, err := s.Get(ctx, key("row-000000")); stored > 0 && err != nil {
		return fmt.Errorf("read on a full disk: %w", err)
	}

	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	if _, err := s.Put(ctx, key(fmt.Sprintf("row-%06d", stored)), value, metastore.Absent); err != nil {
		return fmt.Errorf("write once there is room: %w", err)
	}
	if err := s.Close(); err != nil {
		return err
	}
	s, err = bbolt.Open(bbolt.Config{Dir: dir})
	if err != nil {
		return err
	}
	defer s.Close()
	for i := range stored + 1 {
		if row, err := s.Get(ctx, key(fmt.Sprintf("row-%06d", i))); err != nil || !bytes.Equal(row.Value, value) {
			return fmt.Errorf("row %d after reopening: %w", i, err)
		}
	}
	return nil
}
