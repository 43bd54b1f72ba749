package bench

import (
	"math"
	"slices"
	"testing"
	"time"
)

// samples are measurements of one thing, in any unit.
type samples []float64

func (s *samples) add(v float64)                 { *s = append(*s, v) }
func (s *samples) addTime(d time.Duration)       { s.add(d.Seconds()) }
func (s samples) median() float64                { return s.quantile(.5) }
func (s samples) milliseconds(q float64) float64 { return s.quantile(q) * 1e3 }

// quantile returns the smallest sample that a share q of all does not exceed.
func (s samples) quantile(q float64) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}

// against is Nova's side and the other one, a pair of samples per round.
type against struct{ nova, raw samples }

// ratio is the median of the rounds' ratios: both sides of a round saw the same
// machine.
func (a *against) ratio() float64 {
	var r samples
	for i := range a.nova {
		r.add(a.nova[i] / a.raw[i])
	}
	return r.median()
}

// best is the ratio of both sides' fastest rounds, the least disturbed ones.
func (a *against) best() float64 { return a.nova.quantile(0) / a.raw.quantile(0) }

// quantiles is the ratio of the same quantile of both sides.
func (a *against) quantiles(q float64) float64 { return a.nova.quantile(q) / a.raw.quantile(q) }

// report replaces the time per loop, which says nothing here.
func report(b *testing.B, values map[string]float64) {
	b.ReportMetric(0, "ns/op")
	for unit, v := range values {
		b.ReportMetric(v, unit)
	}
}
