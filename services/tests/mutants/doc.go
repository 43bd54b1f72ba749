// Package mutants breaks the rules that guard the invariants, one at a time, and
// sees that the small test which guards each of them fails. A rule without such
// a test is a rule that a later change can lose without anybody noticing.
//
// A mutant is the replacement of one small piece of one file, given to the
// compiler as an overlay: production code has no hooks for it. `make mutants`
// runs them; the build tag keeps them out of `make test`.
package mutants
