// Package history is where the settled records of a stream are: the refs and
// pages of its head, and the tree of pages below them. Nothing here writes
// anything: the functions change a head in memory, and its owner writes pages and puts
// the head by compare-and-set.
//
// Invariants:
//   - Head.pages and then Head.refs are in order and without gaps (I1), pages of
//     higher levels first. They cover [dropped_to, tail) once all is settled.
//   - The bytes of both are bounded, and so are the pages read per lookup: one per
//     level (I8).
//   - A page that was loaded is used only if level, range, times, bytes and order are
//     what the page that names it says (I10).
//   - Nothing that ends at or below dropped_to is returned or read.
package history
