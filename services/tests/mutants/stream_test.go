//go:build mutants

package mutants

// streamMutants break the rules of a stream: numbers, timestamps, producers.
var streamMutants = []mutant{
	{
		rule: "entries at or below folded are passed over", invariant: "I1", file: "libs/head/state.go",
		old: "if s.Folded.Epoch != 0 && !s.Folded.Less(e.Position) {",
		new: "if s.Folded.Epoch != 0 && e.Position.Less(s.Folded) {",
		pkg: "libs/head", test: "TestEntriesApplyInOrderAndOnce",
	},
	{
		rule: "a fold refuses a gap", invariant: "I1", file: "libs/head/state.go",
		old: "case h.BaseSeq != s.Tail:",
		new: "case h.BaseSeq < s.Tail:",
		pkg: "libs/head", test: "TestWhatDoesNotFollowIsBroken",
	},
	{
		rule: "a fold compares content hashes", invariant: "I10", file: "libs/head/state.go",
		old: "case h.HashBefore != s.Hash:",
		new: "case h.HashBefore == 0 && s.Hash != 0:",
		pkg: "libs/head", test: "TestWhatDoesNotFollowIsBroken",
	},
	{
		rule: "a fold refuses timestamps that go back", invariant: "I9", file: "libs/head/state.go",
		old: "case h.Count > 0 && h.FirstTimestamp < s.LastTimestamp:",
		new: "case h.Count > 0 && h.FirstTimestamp < 0:",
		pkg: "libs/head", test: "TestWhatDoesNotFollowIsBroken",
	},
	{
		rule: "trim goes forward only", invariant: "I2", file: "libs/head/state.go",
		old: "s.Trim = max(s.Trim, min(to, s.Tail))",
		new: "s.Trim = min(to, s.Tail)",
		pkg: "libs/head", test: "TestTrimStaysBelowTheTailAndGoesForward",
	},
	{
		rule: "a batch that is sent again is not stored again", invariant: "I5", file: "libs/head/producer.go",
		old: "return Duplicate, pr.batches[len(pr.batches)-1-int(back)], 0",
		new: "return Accept, Batch{}, 0",
		pkg: "libs/head", test: "TestRememberedBatchIsADuplicate",
	},
	{
		rule: "a producer that may have been forgotten is refused", invariant: "I5", file: "libs/head/producer.go",
		old: "case p.tooOld(b.ID):",
		new: "case b.ID == \"\":",
		pkg: "libs/head", test: "TestForgottenULIDsAreRefused",
	},
	{
		rule: "an unknown producer begins at batch 0", invariant: "I5", file: "libs/head/producer.go",
		old: "case b.Batch != 0:\n\t\t\treturn Gap, Batch{}, 0\n\t\tcase p.tooOld",
		new: "case p.tooOld",
		pkg: "libs/head", test: "TestUnknownProducerBeginsAtBatchZero",
	},
	{
		rule: "the horizon is measured by the clock", invariant: "I5", file: "libs/head/producer.go",
		old: "pr.heard = p.clock",
		new: "pr.heard = batch.LastTimestamp",
		pkg: "libs/head", test: "TestHorizonDoesNotTrustRecordTimestamps",
	},
}
