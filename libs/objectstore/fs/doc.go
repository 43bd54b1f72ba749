// Package fs is an object store in a directory of a local file system, for a
// node that is durable alone (--dir).
//
// The directory holds
//
//	objects/<key>   one file per object, its bytes and nothing else
//	tmp/<n>         files on their way, removed at Open
//	lock            locked by the process that has the store open
//
// One process owns the directory: Open takes the lock and fails if another has
// it. PutIfMatch and the removal of temporary files rely on that.
//
// # Writing
//
// A put writes tmp/<n>, syncs it, makes the folders of the key, links the file
// to its final name (link(2), which fails if the name is taken, so that of any
// number of writers one wins; PutIfMatch renames instead, under a lock of the
// key), syncs the folder, and, where a folder is new or not yet known to be
// durable, the folders above. That is two syncs per put in the steady state.
//
//   - A crash before the link leaves a temporary file, or an empty folder:
//     nothing a reader can see.
//   - A crash after it leaves the whole object: its bytes were synced before it
//     had a name. The name may yet be lost with the machine's power.
//
// # What is visible is durable before it is told
//
// A name may be visible and not durable: its folder's sync is under way, failed,
// or the process that made it was killed before the sync. Whoever told of such an
// object (a read, ErrExists, ErrMismatch) could build on it, or acknowledge its
// own earlier attempt, and lose it with the power. So each of these answers first
// makes the name durable, or is ErrUnavailable. To know when that costs nothing,
// the store remembers the folders it has synced in this life, and within them the
// names linked since. The first use of a folder in a process's life therefore
// syncs it once; nothing is scanned at Open. List is exempt: it serves offline
// tools.
//
// After a failed sync of a folder no further name is linked there until a sync of
// it succeeds, so a failing disk leaves a bounded number of undecided names. A
// later sync that succeeds is believed: file systems that cannot write a folder
// to disk stop for good (ext4, XFS and btrfs abort their journal and turn
// read-only), they do not forget it. For file contents, where they may forget, a
// failed sync discards the file and the retry writes a new one.
//
// # Versions
//
// An ETag is size, modification time and inode of the file. Each replacement of
// a key gets a later modification time than the version it replaces, so a version
// never comes back, also when the clock steps back or the bytes are equal, and a
// ranged read need not read the whole file to know it. ETags do not survive a
// copy of the directory; nothing keeps them.
//
// # A directory that is gone
//
// While objects/ is not where it was at Open (moved away, or its file system
// unmounted) every call is ErrUnavailable: nothing is said to be absent, and no
// directory is made in its place, which would take writes apart from the others.
// When it comes back, all goes on.
//
// Calls end with their context between file operations; one that hangs in the
// kernel is waited for.
package fs
