package fs

import (
	"errors"
	"path"
	"sync"
	"syscall"
)

// maxFolders bounds the folders the store remembers (I8). A forgotten one is
// synced once more when it is next used.
const maxFolders = 1 << 14

// folders knows which names below objects/ are durable, and keeps a folder in
// being while somebody works in it. Folders are named by their key prefix
// without the slash; "" is objects/ itself, which is never removed.
type folders struct {
	disk disk
	path func(folder string) string // in the file system

	mu    sync.Mutex // held for rmdir, never for a sync
	known map[string]*folder
}

// folder is guarded by folders.mu.
type folder struct {
	users int  // calls at work below it; while > 0 it is neither removed nor forgotten
	empty bool // it may be: try to remove it when the last user leaves

	// entered: its own name, and those of all folders above, are durable. Stays
	// true while it exists, as a folder with something in it is never removed.
	entered bool
	// swept: a sync in this life has made all names durable that were there
	// before, so that only those in changes can be less.
	swept bool
	// failed: the last sync did. No new names until one succeeds.
	failed bool
	// changes are the names linked, replaced or removed in this life that no
	// sync has covered yet.
	changes map[string]change
	clock   uint64 // counts changes made
}

type change struct {
	underway int    // calls that are at it now
	at       uint64 // clock of the newest one made; 0: none was
}

func newFolders(disk disk, path func(string) string) *folders {
	return &folders{disk: disk, path: path, known: map[string]*folder{}}
}

// parentOf returns the folder above dir, which is not "".
func parentOf(dir string) string {
	if parent := path.Dir(dir); parent != "." {
		return parent
	}
	return ""
}

// above yields dir and every folder above it, up to "".
func above(dir string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for yield(dir) && dir != "" {
			dir = parentOf(dir)
		}
	}
}

// enter keeps dir and the folders above it from being removed until leave.
func (f *folders) enter(dir string) *folder {
	f.mu.Lock()
	defer f.mu.Unlock()
	for d := range above(dir) {
		if f.known[d] == nil {
			f.known[d] = &folder{changes: map[string]change{}}
		}
		f.known[d].users++
	}
	return f.known[dir]
}

// leave ends enter. The last to leave a folder that may be empty removes it. The
// removal is not synced: an empty folder may come back, an object cannot.
func (f *folders) leave(dir string, emptied bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known[dir].empty = f.known[dir].empty || emptied
	for d := range above(dir) {
		at := f.known[d]
		at.users--
		if !at.empty || at.users > 0 || d == "" {
			continue
		}
		at.empty = false
		// Not empty after all (ENOTEMPTY or EEXIST) is the usual answer. On
		// any other failure an empty folder stays, which harms nobody.
		if err := f.disk.rmdir(f.path(d)); err == nil || errors.Is(err, syscall.ENOENT) {
			delete(f.known, d)
			f.known[parentOf(d)].empty = true
		}
	}
	f.forget()
}

// forget drops idle folders that hold nothing undecided. Called with mu held.
func (f *folders) forget() {
	if len(f.known) <= maxFolders {
		return
	}
	for d, at := range f.known {
		if at.users == 0 && len(at.changes) == 0 && !at.failed {
			delete(f.known, d)
		}
		if len(f.known) <= maxFolders/2 {
			return
		}
	}
}

// make makes dir and the folders above it, which the caller has entered.
func (f *folders) make(dir string, at *folder) error {
	f.mu.Lock()
	there := at.entered
	f.mu.Unlock()
	if there {
		return nil
	}
	return f.makeAll(dir)
}

func (f *folders) makeAll(dir string) error {
	if dir == "" {
		// Open has made it. If it is gone, so are all objects: a new one would take
		// writes that are then apart from them.
		return nil
	}
	err := f.disk.mkdir(f.path(dir))
	if errors.Is(err, syscall.ENOENT) {
		if err := f.makeAll(parentOf(dir)); err != nil {
			return err
		}
		err = f.disk.mkdir(f.path(dir))
	}
	if errors.Is(err, syscall.EEXIST) {
		return nil // also for a file of that name: what follows gets ENOTDIR
	}
	return err
}

// settled reports whether what is visible under the name is known to be durable.
func (f *folders) settled(dir, name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := f.known[dir]
	if at == nil || !at.entered || !at.swept {
		return false
	}
	_, changed := at.changes[name]
	return !changed
}

// changing notes that name is about to be linked, replaced or removed in an
// entered folder. changed follows.
func (f *folders) changing(at *folder, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := at.changes[name]
	c.underway++
	at.changes[name] = c
}

// changed ends changing. done: the name may have changed, and the next sync that
// starts from now on covers it.
func (f *folders) changed(at *folder, name string, done bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := at.changes[name]
	c.underway--
	if done {
		at.clock++
		c.at = at.clock
	}
	if c == (change{}) {
		delete(at.changes, name)
		return
	}
	at.changes[name] = c
}

// heal syncs an entered folder whose last sync failed, so that it takes names.
func (f *folders) heal(dir string, at *folder) error {
	f.mu.Lock()
	failed := at.failed
	f.mu.Unlock()
	if !failed {
		return nil
	}
	return f.sync(dir, at)
}

// settle makes durable what is visible in an entered folder: its names, its own
// and those above.
func (f *folders) settle(dir string, at *folder) error {
	if err := f.sync(dir, at); err != nil {
		return err
	}
	f.mu.Lock()
	entered := at.entered
	parent := f.known[parentOf(dir)] // entered with dir, so it is there
	f.mu.Unlock()
	if entered {
		return nil
	}
	// Open has synced the name of "".
	if dir != "" {
		if err := f.settle(parentOf(dir), parent); err != nil {
			return err
		}
	}
	f.mu.Lock()
	at.entered = true
	f.mu.Unlock()
	return nil
}

func (f *folders) sync(dir string, at *folder) error {
	f.mu.Lock()
	from := at.clock
	f.mu.Unlock()
	err := f.disk.syncDir(f.path(dir))
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return err // there is no folder that could lose a name
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	at.failed = err != nil
	if err != nil {
		return err
	}
	at.swept = true
	for name, c := range at.changes {
		if c.underway == 0 && c.at <= from {
			delete(at.changes, name)
		}
	}
	return nil
}
