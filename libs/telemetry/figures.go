package telemetry

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// Figures returns what Metrics shows as one number per name: counters and
// gauges summed over their labels, of histograms the count and the sum. Beyond
// limit the last names are left out.
func (t *Telemetry) Figures(limit int) (map[string]float64, error) {
	families, err := t.gatherer.Gather()
	if err != nil && len(families) == 0 {
		return nil, fmt.Errorf("gather metrics: %w", err)
	}
	figures := make(map[string]float64)
	for _, f := range families {
		name := f.GetName()
		for _, m := range f.GetMetric() {
			switch {
			case m.GetCounter() != nil:
				figures[name] += m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				figures[name] += m.GetGauge().GetValue()
			case m.GetUntyped() != nil:
				figures[name] += m.GetUntyped().GetValue()
			case m.GetHistogram() != nil:
				figures[name+"_count"] += float64(m.GetHistogram().GetSampleCount())
				figures[name+"_sum"] += m.GetHistogram().GetSampleSum()
			case m.GetSummary() != nil:
				figures[name+"_count"] += float64(m.GetSummary().GetSampleCount())
				figures[name+"_sum"] += m.GetSummary().GetSampleSum()
			}
		}
	}
	// JSON has no number for these.
	maps.DeleteFunc(figures, func(_ string, v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	if len(figures) > limit {
		for _, name := range slices.Sorted(maps.Keys(figures))[limit:] {
			delete(figures, name)
		}
	}
	return figures, nil
}
