package client

import (
	"errors"
	"testing"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// runOf is an intact run of records that begins at a number.
func runOf(before stream.Hash, first uint64, bodies ...string) run {
	r := run{before: uint64(before), next: first + uint64(len(bodies))}
	hash := before
	for i, b := range bodies {
		rec := stream.Record{Seq: stream.Seq(first) + stream.Seq(i), Body: []byte(b)}
		hash, _ = chunk.HashRecord(hash, &rec, nil)
		r.records = append(r.records, &novapb.Record{Seq: uint64(rec.Seq), Body: rec.Body})
	}
	r.after = uint64(hash)
	return r
}

// What does not follow is an error, also where no content hash is known (I1, I2).
func TestRunsFollowEachOther(t *testing.T) {
	first := runOf(7, 5, "a", "b")
	second := func(edit func(*run)) []run {
		r := runOf(stream.Hash(first.after), 7, "c", "d")
		edit(&r)
		return []run{first, r}
	}
	for what, c := range map[string]struct {
		runs []run
		ok   bool
	}{
		"intact":                          {second(func(*run) {}), true},
		"the first is missing":            {[]run{runOf(7, 6, "b")}, false},
		"more than was asked for":         {[]run{runOf(7, 4, "x", "a")}, false},
		"one is missing in between":       {second(func(r *run) { *r = runOf(stream.Hash(first.after), 8, "d") }), false},
		"one comes twice":                 {second(func(r *run) { *r = runOf(stream.Hash(first.after), 6, "b") }), false},
		"missing inside":                  {second(func(r *run) { r.records = r.records[1:] }), false},
		"another hash before":             {second(func(r *run) { r.before++ }), false},
		"another hash after":              {second(func(r *run) { r.after++ }), false},
		"another body":                    {second(func(r *run) { r.records[0].Body = []byte("x") }), false},
		"the next number is wrong":        {second(func(r *run) { r.next++ }), false},
		"no record, and numbers are gone": {[]run{first, {next: 9}}, false},
		"no record":                       {[]run{first, {next: 7}}, true},
	} {
		t.Run(what, func(t *testing.T) {
			var check continuity
			check.expect(5)
			var err error
			for _, r := range c.runs {
				if err == nil {
					_, err = check.follow(r, false, &novapb.ReadRequest{})
				}
			}
			if c.ok && err != nil || !c.ok && !errors.Is(err, ErrBroken) {
				t.Errorf("%v", err)
			}
		})
	}
}
