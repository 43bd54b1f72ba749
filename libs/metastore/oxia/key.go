package oxia

import (
	"fmt"
	"strings"
)

// Oxia sorts keys by path segments or by bytes, as a namespace was configured,
// and its own bookkeeping lives under "__oxia/". Keys without any slash sort
// by bytes either way, and no range or floor over them meets a key with one.
// So a slash is written as ".:" and, to keep that unambiguous and in order, a
// dot as ".-": the pair stands where the byte stood, between '-' and '0', and
// the dot's pair is below the slash's. ".;" ends a part of the key; no part
// holds it.
//
// A row's key is prefix, partition and path. With the partition in the key, two
// partitions that Oxia keeps in one shard stay apart, as in any other store.
const (
	escapedDot   = ".-"
	escapedSlash = ".:"
	endOfPart    = ".;"
)

var (
	escaper   = strings.NewReplacer(".", escapedDot, "/", escapedSlash)
	unescaper = strings.NewReplacer(escapedDot, ".", escapedSlash, "/")
)

func escape(part string) string { return escaper.Replace(part) }

// keys writes and reads the keys of one store.
type keys struct {
	prefix string // escaped, with its end
}

func newKeys(prefix string) keys { return keys{escape(prefix) + endOfPart} }

// partition returns what all keys of a partition begin with.
func (k keys) partition(partition string) string {
	return k.prefix + escape(partition) + endOfPart
}

func (k keys) key(partition, path string) string {
	return k.partition(partition) + escape(path)
}

// parse returns the partition and path of a key, or an error for a key that
// this store did not write.
func (k keys) parse(key string) (partition, path string, err error) {
	rest, ours := strings.CutPrefix(key, k.prefix)
	partition, path, whole := strings.Cut(rest, endOfPart)
	if !ours || !whole || strings.Contains(path, endOfPart) || strings.Contains(rest, "/") {
		return "", "", fmt.Errorf("key %q is not one of ours", key)
	}
	return unescaper.Replace(partition), unescaper.Replace(path), nil
}
