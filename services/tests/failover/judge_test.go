package failover

import (
	"fmt"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// judgement is what is said of one history.
type judgement struct {
	result porcupine.CheckResult
	wrong  []string // contradictions
	why    string   // of Illegal, for people
	took   time.Duration
	ops    int
}

func (j *judgement) good() bool { return j.result != porcupine.Illegal && len(j.wrong) == 0 }

// judge judges a history; limit is for Porcupine.
func judge(ops []*op, limit time.Duration) judgement {
	began := time.Now()
	seen := observe(ops)
	j := judgement{result: porcupine.Unknown, wrong: seen.wrong, ops: len(ops)}
	if len(seen.wrong) == 0 {
		resolved := seen.resolve(ops)
		history := operations(resolved)
		if j.result = porcupine.CheckOperationsTimeout(model, history, limit); j.result == porcupine.Illegal {
			_, info := porcupine.CheckOperationsVerbose(model, history, limit)
			j.why = explain(resolved, &info)
		}
	}
	j.took = time.Since(began)
	return j
}

func operations(ops []*op) []porcupine.Operation {
	out := make([]porcupine.Operation, len(ops))
	for i, o := range ops {
		out[i] = porcupine.Operation{ClientId: o.client, Input: o, Call: o.call, Return: o.ret}
	}
	return out
}

// explain shows the longest order that was found and what does not follow it.
func explain(ops []*op, info *porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, p := range info.PartialLinearizationsOperations()[0] {
		if len(p) > len(longest) {
			longest = p
		}
	}
	var b strings.Builder
	s, in := &state{}, map[*op]bool{}
	for _, p := range longest {
		o := p.Input.(*op)
		_, s = s.step(o)
		in[o] = true
	}
	fmt.Fprintf(&b, "%d of %d operations have an order, then the stream is: trim %d tail %d token %q sealed %v producers %v\n",
		len(longest), len(ops), s.trim, s.tail, s.token, s.sealed, s.producers)
	b.WriteString("the last of them:\n")
	for _, p := range longest[max(0, len(longest)-10):] {
		fmt.Fprintf(&b, "  %v\n", p.Input)
	}
	b.WriteString("which none of these follows:\n")
	n := 0
	for _, o := range ops {
		if n++; !in[o] && n < 400 {
			fmt.Fprintf(&b, "  %v\n", o)
		}
	}
	return b.String()
}
