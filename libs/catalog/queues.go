package catalog

import (
	"slices"
	"strings"
)

// queues are those of due markers, sorted.
var queues = []string{"bucket", "chain", QueueCompact, "create", "delete", "directory", "reclaim", "retention", "settled", "unref"}

// Queues returns the names of the queues of due markers, sorted.
func Queues() []string { return slices.Clone(queues) }

// IsQueue reports whether a queue is one of Queues.
func IsQueue(name string) bool { return slices.Contains(queues, name) }

const dead = "dead-"

// DeadQueue returns the queue in which the markers of a queue are set aside.
func DeadQueue(queue string) string { return dead + queue }

// ListAtOnce returns how many markers of a queue, or of those set aside, are listed
// at once at most: they come in one message, and those of unref may hold a quarter
// of a MiB each.
func ListAtOnce(queue string) uint32 {
	if strings.TrimPrefix(queue, dead) == "unref" {
		return 8
	}
	return 1000
}
