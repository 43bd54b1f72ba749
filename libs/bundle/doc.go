// Package bundle is the format of what lies in a slot of a chain: a bundle of
// entries of many streams, or a SEAL. docs/formats.md specifies the bytes.
//
// An entry can be checked by itself, from its coordinates alone. The footer
// repeats what is known of every entry, without payloads, so that footers alone
// rebuild the whole index. Bytes of a bundle depend on nothing but its entries,
// its flight and its slot: every try to store it writes the same.
//
// Every error of damaged bytes wraps ErrCorrupt; nothing here panics on input.
package bundle
