package gateway

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/nova-stream/nova/libs/reason"
)

// query reads typed parameters; the first bad or unknown one is kept.
type query struct {
	values url.Values
	seen   map[string]bool
	err    error
}

func newQuery(r *http.Request) *query {
	// r.URL.Query would drop what it cannot parse.
	values, err := url.ParseQuery(r.URL.RawQuery)
	q := &query{values: values, seen: map[string]bool{}}
	if err != nil {
		q.err = reason.Field("query", "cannot be parsed: "+err.Error())
	}
	return q
}

func (q *query) fail(name, problem string) {
	if q.err == nil {
		q.err = reason.Field(name, problem)
	}
}

func (q *query) text(name string) string {
	q.seen[name] = true
	if len(q.values[name]) > 1 {
		q.fail(name, "must be given once")
	}
	return q.values.Get(name)
}

func (q *query) uint(name string) *uint64 {
	s := q.text(name)
	if s == "" {
		return nil
	}
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		q.fail(name, fmt.Sprintf("must be a number from 0 on, is %q", s))
	}
	return &v
}

// upTo is a number with a limit, 0 if it is not given.
func (q *query) upTo(name string, limit uint32) uint32 {
	v := q.uint(name)
	if v == nil {
		return 0
	}
	if *v > uint64(limit) {
		q.fail(name, fmt.Sprintf("must be at most %d, is %d", limit, *v))
	}
	return uint32(*v)
}

func (q *query) millis(name string) *int64 {
	s := q.text(name)
	if s == "" {
		return nil
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		q.fail(name, fmt.Sprintf("must be milliseconds since 1970, is %q", s))
	}
	return &v
}

func (q *query) bool(name string) bool {
	s := q.text(name)
	if s == "" {
		return q.values.Has(name) // ?clamp means ?clamp=true
	}
	v, err := strconv.ParseBool(s)
	if err != nil {
		q.fail(name, fmt.Sprintf("must be true or false, is %q", s))
	}
	return v
}

// done returns the first error: a bad parameter, or one that is not known.
func (q *query) done() error {
	if q.err != nil {
		return q.err
	}
	for name := range q.values {
		if !q.seen[name] {
			return reason.Field(name, "is not a parameter of this request")
		}
	}
	return nil
}
