package fs

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// powerDisk does everything on the real disk and keeps account of what a loss
// of power would leave: contents synced, names in synced directories. It runs a
// hook before each step, which may fail it.
type powerDisk struct {
	real realDisk

	mu      sync.Mutex
	step    int
	hook    func(step int, op, path string) error
	visible map[string]*file            // by path
	durable map[string]map[string]*file // directory -> name -> what the last sync saw
	syncs   map[string]int              // op -> how many
}

type file struct {
	dir     bool
	written string
	synced  bool
}

func newPowerDisk() *powerDisk {
	return &powerDisk{visible: map[string]*file{}, durable: map[string]map[string]*file{}, syncs: map[string]int{}}
}

var errKilled = errors.New("killed here")

// do runs the hook, the step on the disk and, if that succeeded, its effect in
// the account, as one.
func (d *powerDisk) do(op, path string, step func() error, effect func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.step++
	if d.hook != nil {
		if err := d.hook(d.step, op, path); err != nil {
			return &os.PathError{Op: op, Path: path, Err: err}
		}
	}
	if err := step(); err != nil {
		return err
	}
	effect()
	return nil
}

func (d *powerDisk) create(path string) (f *os.File, err error) {
	err = d.do("create", path, func() error { f, err = d.real.create(path); return err }, func() { d.visible[path] = &file{} })
	return f, err
}

func (d *powerDisk) write(f *os.File, body []byte) error {
	return d.do("write", f.Name(), func() error { return d.real.write(f, body) }, func() { d.visible[f.Name()].written += string(body) })
}

func (d *powerDisk) chtimes(path string, mtime time.Time) error {
	return d.do("chtimes", path, func() error { return d.real.chtimes(path, mtime) }, func() {})
}

// Tests need no real sync: the account says what it would have done.
func (d *powerDisk) sync(f *os.File) error {
	return d.do("sync", f.Name(), func() error { return nil }, func() {
		d.syncs["sync"]++
		d.visible[f.Name()].synced = true
	})
}

func (d *powerDisk) link(from, to string) error {
	return d.do("link", to, func() error { return d.real.link(from, to) }, func() { d.visible[to] = d.visible[from] })
}

func (d *powerDisk) rename(from, to string) error {
	return d.do("rename", to, func() error { return d.real.rename(from, to) }, func() {
		d.visible[to] = d.visible[from]
		delete(d.visible, from)
	})
}

func (d *powerDisk) unlink(path string) error {
	return d.do("unlink", path, func() error { return d.real.unlink(path) }, func() { delete(d.visible, path) })
}

func (d *powerDisk) rmdir(path string) error {
	return d.do("rmdir", path, func() error { return d.real.rmdir(path) }, func() { delete(d.visible, path) })
}

func (d *powerDisk) mkdir(path string) error {
	return d.do("mkdir", path, func() error { return d.real.mkdir(path) }, func() { d.visible[path] = &file{dir: true} })
}

func (d *powerDisk) syncDir(path string) error {
	return d.do("syncDir", path, func() error { _, err := os.Stat(path); return err }, func() {
		d.syncs["syncDir"]++
		names := map[string]*file{}
		for p, f := range d.visible {
			if filepath.Dir(p) == path {
				names[filepath.Base(p)] = f
			}
		}
		d.durable[path] = names
	})
}

// survivors returns the objects that a loss of power now would leave below
// root: key -> contents, "torn" where they were never synced.
func (d *powerDisk) survivors(root string) map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	found := map[string]string{}
	top := filepath.Join(root, "objects")
	var walk func(dir string)
	walk = func(dir string) {
		for name, f := range d.durable[dir] {
			p := filepath.Join(dir, name)
			switch {
			case f.dir:
				// A directory that was made again is another one, whose names
				// are not durable because those of the first were.
				if d.visible[p] == f || d.visible[p] == nil {
					walk(p)
				}
			case f.synced:
				found[strings.TrimPrefix(p, top+"/")] = f.written
			default:
				found[strings.TrimPrefix(p, top+"/")] = "torn"
			}
		}
	}
	walk(top)
	return found
}

func (d *powerDisk) setHook(hook func(step int, op, path string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.step, d.hook = 0, hook
}

func (d *powerDisk) counts() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.syncs)
}
