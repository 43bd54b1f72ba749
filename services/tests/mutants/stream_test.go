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
		old: "(b.Batch != 0 || born <= p.forgottenUntil):",
		new: "b.Batch != 0:",
		pkg: "libs/head", test: "TestForgottenULIDsAreRefused",
	},
	{
		rule: "an unknown producer begins at batch 0", invariant: "I5", file: "libs/head/producer.go",
		old: "case b.Batch != 0:\n\t\treturn Gap\n",
		new: "",
		pkg: "libs/head", test: "TestUnknownProducerBeginsAtBatchZero",
	},
	{
		rule: "the horizon is measured by the log's time", invariant: "I5", file: "libs/head/producer.go",
		old: "pr.heard = at\n",
		new: "pr.heard = batch.LastTimestamp\n",
		pkg: "libs/head", test: "TestHorizonDoesNotTrustRecordTimestamps",
	},
	{
		rule: "the log's time does not go back", invariant: "I5", file: "libs/head/producer.go",
		old: "\tat = p.at(at)\n",
		new: "",
		pkg: "libs/head", test: "TestHorizonUnderAClockThatGoesBack",
	},
	{
		rule: "a producer is forgotten only beyond the horizon", invariant: "I5", file: "libs/head/producer.go",
		old: "|| at-pr.heard > horizon {",
		new: "|| at-pr.heard > horizon/7 {",
		pkg: "services/sequencer", test: "TestHorizonOutlivesLeaders",
	},
	{
		rule: "ULIDs born before the horizon are refused", invariant: "I5", file: "libs/head/producer.go",
		old: "case born < now-horizon:",
		new: "case born < 0:",
		pkg: "libs/head", test: "TestOldULIDsAreRefused",
	},
	{
		rule: "a ULID of the future is not forgotten by its birth", invariant: "I5", file: "libs/head/producer.go",
		old: "pr.born <= at || at-pr.heard > horizon {",
		new: "pr.born != notBorn || at-pr.heard > horizon {",
		pkg: "libs/head", test: "TestULIDsOfTheFutureAreForgottenLikePlainIDs",
	},
	{
		rule: "a lower epoch of a producer is fenced", invariant: "I5", file: "libs/head/producer.go",
		old: "case b.Epoch < pr.epoch:",
		new: "case b.Epoch+1 < pr.epoch:",
		pkg: "services/sequencer", test: "TestZombieProducerStaysFenced",
	},
	{
		rule: "each producer keeps its last batch", invariant: "I5", file: "libs/head/producer.go",
		old: "for len(pr.batches) > 1 && p.bytes+pr.size() > MaxTableBytes {",
		new: "for len(pr.batches) > 0 && p.bytes+pr.size() > MaxTableBytes/2 {",
		pkg: "libs/head", test: "TestLongSilentProducersKeepFewerBatches",
	},
	{
		rule: "a head's record holds who was forgotten", invariant: "I5", file: "libs/head/record.go",
		old: "s.Producers.forgottenUntil = stream.Millis(r.GetProducersForgottenUntil())",
		new: "",
		pkg: "services/sequencer", test: "TestForgottenProducerStaysRefused",
	},
	{
		rule: "a head's record holds when a producer was heard", invariant: "I5", file: "libs/head/record.go",
		old: "epoch: in.GetEpoch(), heard: stream.Millis(in.GetHeard())}",
		new: "epoch: in.GetEpoch()}",
		pkg: "services/sequencer", test: "TestHorizonOutlivesLeaders",
	},
	{
		rule: "what was stored is judged before preconditions", invariant: "I5", file: "services/sequencer/pump.go",
		old: "\tif r.producer.ID != \"\" && !next {\n\t\tverdict, dup, expected",
		new: "\tif err := n.check(r); err != nil {\n\t\tn.refuse(r, err)\n\t\treturn\n\t}\n\tif r.producer.ID != \"\" && !next {\n\t\tverdict, dup, expected",
		pkg: "services/sequencer", test: "TestDuplicateIsJudgedBeforePreconditions",
	},
	{
		rule: "a batch that was stored with other records is not acknowledged", invariant: "I2", file: "services/sequencer/producer.go",
		old: "uint64(len(r.records)) != stored {",
		new: "uint64(len(r.records)) < stored {",
		pkg: "services/sequencer", test: "TestEveryRefusalSaysItsOutcome",
	},
	{
		rule: "a refusal of what may be stored stays UNKNOWN", invariant: "I5", file: "services/sequencer/stream.go",
		old: "if reason.OutcomeOf(w.refusal) != \"\" {",
		new: "if w.refusal == nil {",
		pkg: "services/sequencer", test: "TestEveryRefusalSaysItsOutcome",
	},
	{
		rule: "chunks say when they were numbered", invariant: "I5", file: "services/sequencer/pump.go",
		old: "kind: bundle.KindChunk, ts: n.arrival, body",
		new: "kind: bundle.KindChunk, body",
		pkg: "services/sequencer", test: "TestHorizonOutlivesLeaders",
	},
	{
		rule: "a stream opens with the last timestamp of its head", invariant: "I9", file: "libs/head/record.go",
		old: "LastTimestamp: stream.Millis(r.GetLastTimestamp()),",
		new: "",
		pkg: "services/sequencer", test: "TestTimestampsNeverDecreaseOverFailovers",
	},
	{
		rule: "a stream opens with the entries above its head", invariant: "I5", file: "services/sequencer/open.go",
		old: "st.fold(slices.Concat(found...))",
		new: "st.fold(slices.Concat(found[:0]...))",
		pkg: "services/sequencer", test: "TestResendAfterEveryCrashIsStoredOnce",
	},
	{
		rule: "nothing is folded over a quarantined head", invariant: "I2", file: "services/sequencer/open.go",
		old: "if q := record.GetQuarantine(); q != \"\" && !st.assigned.Deleted {",
		new: "if q := record.GetQuarantine(); q == \"never\" {",
		pkg: "services/sequencer", test: "TestBrokenStreamStopsNobodyElse",
	},
	{
		rule: "damage that is seen once quarantines nobody", invariant: "I2", file: "services/sequencer/open.go",
		old: "case errors.As(err, &broken) && !broke:",
		new: "case errors.As(err, &broken) && broke:",
		pkg: "services/sequencer", test: "TestDamageOnTheWayQuarantinesNobody",
	},
	{
		rule: "damage of many streams quarantines none of them", invariant: "I2", file: "services/sequencer/quarantine.go",
		old: "if found.shared {",
		new: "if found == nil {",
		pkg: "services/sequencer", test: "TestDamagedDirectoryQuarantinesNobody",
	},
	{
		rule: "a quarantined head moves no further", invariant: "I2", file: "services/index/quarantine.go",
		old: "case next.GetQuarantine() != \"\" && moved:",
		new: "case next.GetQuarantine() == \"never\" && moved:",
		pkg: "services/index", test: "TestQuarantineHoldsUntilItIsLifted",
	},
	{
		rule: "that a stream is gone is proven", invariant: "I2", file: "libs/catalog/catalog.go",
		old: "&indexpb.GetHeadRequest{StreamId: id.String(), ProveAbsence: true})\n\t\t})\n\t\tif err != nil {\n\t\t\treturn nil, err",
		new: "&indexpb.GetHeadRequest{StreamId: id.String()})\n\t\t})\n\t\tif err != nil {\n\t\t\treturn nil, err",
		pkg: "services/sequencer", test: "TestOldReadsDeleteNothing",
	},
	{
		rule: "an absent head is proven by putting one", invariant: "I2", file: "services/index/proof.go",
		old: "return err // a conflict: there is one",
		new: "absent = true\n\t\t\t\treturn nil",
		pkg: "services/index", test: "TestAbsentHeadIsProven",
	},
	{
		rule: "changed settings are read freshly", invariant: "I6", file: "services/sequencer/delete_api.go",
		old: "s.index.FreshDescriptor(ctx, id)",
		new: "s.index.GetDescriptor(ctx, id)",
		pkg: "services/sequencer", test: "TestRefreshTakesNoOldRead",
	},
	{
		rule: "a repeat of a batch that is just gathered is not stored again", invariant: "I5", file: "services/sequencer/producer.go",
		old: "return last.Epoch == p.Epoch && last.Batch+1 == p.Batch",
		new: "return last.Epoch == p.Epoch && last.Batch+1 >= p.Batch",
		pkg: "services/sequencer", test: "TestBatchesOfAProducerShareAChunk",
	},
	{
		rule: "a gap behind a batch that is just gathered is seen", invariant: "I5", file: "services/sequencer/pump.go",
		old: "a.Producers.Knows(r.producer.ID) && !n.gathered(r.producer.ID)",
		new: "a.Producers.Knows(r.producer.ID)",
		pkg: "services/sequencer", test: "TestBatchesOfAProducerShareAChunk",
	},
}
