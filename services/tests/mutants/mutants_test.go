//go:build mutants

package mutants

import "slices"

// mutants has a row for every rule whose loss a model or a test found to break
// an invariant.
var mutants = slices.Concat(chainMutants, writerMutants, indexMutants, streamMutants, sequencerMutants, clientMutants, reclaimMutants, readerMutants, settleMutants)
