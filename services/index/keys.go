package index

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/nova-stream/nova/libs/metastore"
)

// Key families. Each has a constant number of slashes, so that stores which
// sort hierarchically and stores which sort by bytes agree. Names of streams
// are written in hex, which keeps their byte order and holds no slash.
const (
	partLives     = "life"
	partShards    = "shard"
	partChains    = "chain"
	partBuckets   = "bucket"
	partNamesBase = "name/"
)

func constellationKey() metastore.Key {
	return metastore.Key{Partition: "constellation", Path: "constellation"}
}
func lifeKey(id string) metastore.Key {
	return metastore.Key{Partition: partLives, Path: "life/" + id}
}
func shardKey(n uint32) metastore.Key {
	return metastore.Key{Partition: partShards, Path: fmt.Sprintf("shard/%08d", n)}
}
func chainKey(id string) metastore.Key {
	return metastore.Key{Partition: partChains, Path: "chain/" + id}
}
func directoryKey(chain string, from uint64) metastore.Key {
	return metastore.Key{Partition: chain, Path: fmt.Sprintf("directory/%s/%016x", chain, from)}
}
func headKey(id string) metastore.Key {
	return metastore.Key{Partition: id, Path: "head/" + id}
}
func descriptorKey(id string) metastore.Key {
	return metastore.Key{Partition: id, Path: "descriptor/" + id}
}
func bucketKey(name string) metastore.Key {
	return metastore.Key{Partition: partBuckets, Path: "bucket/" + name}
}
func nameKey(bucket, name string) metastore.Key {
	return metastore.Key{Partition: partNamesBase + bucket, Path: "name/" + bucket + "/" + hex.EncodeToString([]byte(name))}
}

// settledKey puts every object into a partition of its own, so that the load is
// spread. Keys of objects have slashes: '!' sorts below all else they may hold,
// which keeps an object's children before its siblings.
func settledKey(object string) metastore.Key {
	return metastore.Key{Partition: object, Path: "settled/" + strings.ReplaceAll(object, "/", "!")}
}
func dueKey(queue string, at int64, id string) metastore.Key {
	return metastore.Key{Partition: "due/" + queue, Path: fmt.Sprintf("due/%s/%016x-%s", queue, uint64(max(at, 0)), id)}
}

// after is the smallest path that sorts after every path with the prefix made
// of printable ASCII.
const after = "\x7e\x7e"
