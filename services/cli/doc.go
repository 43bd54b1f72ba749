// Package cli is the nova command: everything a person does with a
// constellation from a terminal. It holds no state and talks the public API
// only.
//
// Results go to standard output, in text or, with -o json, as JSON; progress
// and errors go to standard error. Exit codes: 0, 1 failure, 2 usage.
package cli
