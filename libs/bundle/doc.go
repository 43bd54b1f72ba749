// Package bundle is the format of what lies in a slot of a chain: a bundle of
// entries of many streams, or a SEAL. docs/formats.md specifies the bytes.
//
// Invariants:
//   - An entry is checked by itself, from its coordinates alone.
//   - The footer repeats what is known of every entry, without payloads, so that
//     footers alone rebuild the whole index.
//   - Start and footer repeat what the entries say or the reader knows: Rebuild
//     does without them, and never with an entry less.
//   - The bytes depend on nothing but the entries, the flight and the slot: every
//     try to store a bundle writes the same.
//   - The first IdentBytes bytes tell what an object is, with a checksum of their
//     own, in this and every later version.
//   - Damaged bytes are an error that wraps ErrCorrupt, and are never taken for
//     data (I10); nothing here panics on input.
package bundle
