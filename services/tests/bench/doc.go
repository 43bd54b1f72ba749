// Package bench measures how fast Nova is. `make bench` runs it, docs/performance.md
// has the figures.
//
// Nearly every figure is a ratio: what it is compared with is measured in the
// same run, in rounds that alternate with Nova's, because a machine is rarely
// quiet and never as fast as another. The medians of the rounds are reported.
// others-% says which share of all processors other programs used meanwhile:
// where it is high, absolute figures mean little, and ratios between work that
// computes and work that waits for a disk do not mean much either.
//
// Figures of whole programs build novad and nova and run them; the rest runs a
// node in this process, over a store that is also called directly. Absorption,
// settling and reaping are measured beside a node whose own do nothing, so that the
// calls of each are counted by themselves; -v tells them all.
//
// No test depends on a figure. The tests of this package run each measurement
// once, tiny, so that the benchmarks keep working.
package bench
