//go:build mutants

package mutants

// clientMutants break what callers rely on.
var clientMutants = []mutant{
	{
		rule: "only what is certainly not committed is tried again for the caller", invariant: "I5", file: "libs/routing/routing.go",
		old: "case reason.OutcomeOf(err) == reason.Unknown:",
		new: "case reason.OutcomeOf(err) == \"none\":",
		pkg: "libs/routing", test: "TestDo",
	},
	{
		rule: "a failed session says of what may be stored that it is unknown", invariant: "I2", file: "libs/client/session.go",
		old: "case !errors.As(cause, &refused) || refused.outcome != reason.NotCommitted:",
		new: "case !errors.As(cause, &refused):",
		pkg: "libs/client", test: "TestRefusalWhoseOutcomeIsOpen",
	},
	{
		rule: "a reader notices what is missing", invariant: "I2", file: "libs/client/continuity.go",
		old: "if c.placed && first != c.next {",
		new: "if c.placed && first < c.next {",
		pkg: "libs/client", test: "TestRunsFollowEachOther",
	},
	{
		rule: "a reader notices a changed record", invariant: "I10", file: "libs/client/continuity.go",
		old: "if uint64(hash) != r.after {",
		new: "if uint64(hash) != r.after && r.after == 0 {",
		pkg: "libs/client", test: "TestRunsFollowEachOther",
	},
	{
		rule: "what does not decode is asked for as records", invariant: "I10", file: "libs/client/read.go",
		old: "req.Chunks = false\n",
		new: "",
		pkg: "libs/client", test: "TestChunksThatDoNotDecodeAreAskedForAsRecords",
	},
	{
		rule: "a subscription keeps to the stream that it found", invariant: "I2", file: "libs/client/subscribe.go",
		old: "s.req.StreamId = msg.GetStreamId()",
		new: "",
		pkg: "libs/client", test: "TestSubscriberOfADeletedStreamDoesNotGetItsSuccessor",
	},
}
