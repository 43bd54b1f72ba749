// Package novad runs a whole constellation in one process: the same eight
// servers as the separate programs, called through in-process connections with
// the same interceptors. It is the only package that imports several services.
//
// Start order: listeners (so that a taken port is said at once), backends,
// probe, services, then the public server. Stop order: public listeners first,
// so that nothing new comes in; then the sequencer, which answers what is under
// way and releases its life; then everything that it called; the backends last.
package novad
