// Package reaper drains due queues: whoever begins work that must be finished
// arms a marker first, and the reaper finishes it if its beginner did not.
//
// Nothing is scanned (I7): a queue is a range of markers ordered by time. Work
// is idempotent; a marker is removed only when its work is done, moved when it
// failed, and set aside, loudly, when it failed too often.
package reaper
