// Package chunk encodes whole append batches of one stream: the unit that the
// sequencer encodes and checksums once, and that every later holder of the
// bytes verifies (I10). docs/formats.md specifies the bytes.
//
// A chunk is a header and a payload. The header has a checksum of its own, so
// that it can stand without the payload in a bundle's footer and in a
// directory. It says how the payload is encoded; what the core reads are the
// header's counts, never a payload of an encoding it does not know.
//
// Every error of damaged bytes wraps ErrCorrupt; nothing here panics on input.
package chunk
