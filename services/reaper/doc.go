// Package reaper drains due queues: whoever begins work that must be finished
// arms a marker first, and the reaper finishes it if its beginner did not.
//
// Nothing is scanned (I7): a queue is a range of markers ordered by time. A
// marker is claimed by compare-and-set for a while, so that of several reapers
// one works on it; that is for thrift only, since all work is idempotent. A
// marker is removed only when its work is done, moved when it failed or came too
// early, and set aside in the queue dead-<queue>, loudly, when it failed too
// often.
//
// That a marker's condition is not there is proven by a change before the
// marker is dropped, so that a slow beginner fails and arms again.
package reaper
