//go:build mutants

package mutants

// chainMutants break the rules of slots, SEALs and directories.
var chainMutants = []mutant{
	{
		rule: "412 with the own flight means landed", invariant: "I2", file: "libs/chain/landing.go",
		old: "bytes.Equal(o.Body, body[:bundle.IdentBytes])",
		new: "bytes.Equal(o.Body, nil)",
		pkg: "libs/chain", test: "TestLostReplyIsRecognisedAsOwn",
	},
	{
		rule: "412 with another flight is corruption", invariant: "I2", file: "libs/chain/landing.go",
		old: `err = fmt.Errorf("slot %d holds another bundle: %w", slot, ErrForeign)`,
		new: "return nil",
		pkg: "libs/chain", test: "TestForeignBytesStopTheWriter",
	},
	{
		rule: "a 409, a 503 and silence decide nothing", invariant: "I2", file: "libs/chain/landing.go",
		old: "case err == nil, errors.Is(err, errMetSeal)",
		new: "case err == nil, passing(err), errors.Is(err, errMetSeal)",
		pkg: "libs/chain", test: "TestConflictIsTriedAgainInTheSameSlot",
	},
	{
		rule: "a flight keeps its slot", invariant: "I2", file: "libs/chain/landing.go",
		old: "err := a.put(ctx, slot, body)",
		new: "err := a.put(ctx, slot+stream.Slot(n), body)",
		pkg: "libs/chain", test: "TestFlightKeepsItsSlot",
	},
	{
		rule: "a SEAL alone decides nothing", invariant: "I2", file: "libs/chain/appender.go",
		old: "case errors.Is(why, ErrForeign):",
		new: "case errors.Is(why, errMetSeal):\nanswer = func(stream.Slot) error { return ErrCut }\ncase errors.Is(why, ErrForeign):",
		pkg: "libs/chain", test: "TestSealInAReclaimedSlotIsNoVerdict",
	},
	{
		rule: "a flight at or above the cut is not acknowledged", invariant: "I4", file: "libs/chain/appender.go",
		old: "if slot < cut {",
		new: "if slot <= cut {",
		pkg: "libs/chain", test: "TestFrozenWriterAcknowledgesNothing",
	},
	{
		rule: "commits are released in slot order", invariant: "I3", file: "libs/chain/appender.go",
		old: "fl.landed <- a.land(ctx, fl.slot, fl.Builder.Finish(fl.slot))",
		new: `err := a.land(ctx, fl.slot, fl.Builder.Finish(fl.slot))
			if err == nil {
				fl.Done(fl.slot, nil)
				fl.Done = func(stream.Slot, error) {}
			}
			fl.landed <- err`,
		pkg: "libs/chain", test: "TestCommitsAreReleasedInSlotOrder",
	},
	{
		rule: "a writer whose slot is stuck seals its own chain", invariant: "I2", file: "libs/chain/landing.go",
		old: "waited >= a.cfg.StuckAfter",
		new: "waited < 0",
		pkg: "libs/chain", test: "TestSilentStoreEndsTheChainTruthfully",
	},
	{
		rule: "a sealer walks again after a lost compare-and-set", invariant: "I2", file: "libs/chain/seal.go",
		old: `	for n := 0; ; n++ {
		r, version, err := s.index.GetChain(ctx, c.String())
		if err != nil {
			return fail(err)
		}
		if r.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN {
			return stream.Slot(r.GetCut()), nil
		}
		cut, err := s.candidate(ctx, c, stream.Slot(r.GetAbsorbedTo()), lanesOf(r), sealer)
`,
		new: `	var cut stream.Slot
	for n := 0; ; n++ {
		r, version, err := s.index.GetChain(ctx, c.String())
		if err != nil {
			return fail(err)
		}
		if r.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN {
			return stream.Slot(r.GetCut()), nil
		}
		if n == 0 {
			cut, err = s.candidate(ctx, c, stream.Slot(r.GetAbsorbedTo()), lanesOf(r), sealer)
		}
`,
		pkg: "libs/chain", test: "TestOldCandidateIsNeverRecorded",
	},
	{
		rule: "a sealer adopts a cut that is recorded", invariant: "I4", file: "libs/chain/seal.go",
		old: "return stream.Slot(r.GetCut()), nil",
		new: "r.AbsorbedTo = 0",
		pkg: "libs/chain", test: "TestSealStartsAtAbsorbedTo",
	},
	{
		rule: "a sealer walks from absorbed_to", invariant: "I2", file: "libs/chain/seal.go",
		old: "s.candidate(ctx, c, stream.Slot(r.GetAbsorbedTo()), lanesOf(r), sealer)",
		new: "s.candidate(ctx, c, 0, lanesOf(r), sealer)",
		pkg: "libs/chain", test: "TestSealStartsAtAbsorbedTo",
	},
	{
		rule: "a committed slot that is gone is no end of its chain", invariant: "I1", file: "libs/chain/seal.go",
		old: "switch filled, err := s.lost(ctx, c, slot, lanes); {",
		new: "switch filled, err := false, error(nil); {",
		pkg: "libs/chain", test: "TestASlotThatIsGoneIsNoEnd",
	},
	{
		rule: "a slot that is gone alarms nobody before the record is proven to be new", invariant: "I12", file: "libs/chain/seal.go",
		old: "case errors.Is(err, ErrBroken):",
		new: "case errors.Is(err, ErrBroken) && n > 1000:",
		pkg: "libs/chain", test: "TestOldRecordOfAReclaimedChainIsHarmless",
	},
	{
		rule: "whoever meets a SEAL finishes the seal", invariant: "I12", file: "libs/chain/absorb.go",
		old: "if met == holdsSeal && w.open() {",
		new: "if met == holdsSeal && !w.open() {",
		pkg: "libs/chain", test: "TestAbsorberFinishesASeal",
	},
	{
		rule: "an absorber refuses lower epochs", invariant: "I4", file: "libs/chain/directory.go",
		old: "if uint64(e.Epoch) < p.GetEpoch() {",
		new: "if uint64(e.Epoch) < p.GetEpoch() && uint64(e.EntryNo) != p.GetNextEntry() {",
		pkg: "libs/chain", test: "TestFencesDecideWhatCounts",
	},
	{
		rule: "the chain's record keeps the fences below absorbed_to", invariant: "I4", file: "libs/chain/directory.go",
		old: "Epoch: p.GetEpoch(), NextEntry: p.GetNextEntry()}",
		new: "Epoch: 1, NextEntry: p.GetNextEntry()}",
		pkg: "libs/chain", test: "TestFencesDecideWhatCounts",
	},
	{
		rule: "a claimed window is finished, not replaced", invariant: "I2", file: "libs/chain/absorb.go",
		old: "end > w.from {",
		new: "end > w.from+Window {",
		pkg: "libs/chain", test: "TestClaimIsFinishedNotReplaced",
	},
	{
		rule: "a slot that is gone means to read the chain's record again", invariant: "I2", file: "libs/chain/absorb.go",
		old: "if _, err := w.index.PutChain(ctx, w.record, w.version); err != nil {\n\t\t\treturn err\n\t\t}\n\t\treturn fmt.Errorf(\"slot %d of",
		new: "return fmt.Errorf(\"slot %d of",
		pkg: "libs/chain", test: "TestStaleClaimIsNoAlarm",
	},
	{
		rule: "a vanished directory means start again", invariant: "I1", file: "libs/chain/lookup.go",
		old: "if covered < to {",
		new: "if covered < from {",
		pkg: "libs/chain", test: "TestLookup",
	},
}

// writerMutants break the rules of the chain-writer.
var writerMutants = []mutant{
	{
		rule: "a duplicate joins the pending entry", invariant: "I2", file: "services/chainwriter/writer.go",
		old: "if it := st.pending[e.EntryNo]; it != nil {",
		new: "if it := st.pending[e.EntryNo]; it != nil && it.fence != nil {",
		pkg: "services/chainwriter", test: "TestRepeatedEntryIsTakenOnce",
	},
	{
		rule: "a writer takes only the next entry number", invariant: "I1", file: "services/chainwriter/writer.go",
		old: "case e.EntryNo > next:",
		new: "case e.EntryNo > next+1:",
		pkg: "services/chainwriter", test: "TestOnlyTheNextEntryNumberIsTaken",
	},
	{
		rule: "a writer refuses lower epochs", invariant: "I4", file: "services/chainwriter/writer.go",
		old: "case e.Epoch < st.epoch:",
		new: "case e.Epoch == 0:",
		pkg: "services/chainwriter", test: "TestOnlyTheNextEntryNumberIsTaken",
	},
	{
		rule: "an epoch that began in a chain cannot be fenced at itself", invariant: "I4", file: "services/chainwriter/writer.go",
		old: "if epoch <= st.epoch {",
		new: "if epoch < st.epoch {",
		pkg: "services/chainwriter", test: "TestFenceOfABoundEpochIsRefused",
	},
	{
		rule: "a fence that is repeated gives the same cut", invariant: "I4", file: "services/chainwriter/writer.go",
		old: "if epoch == st.epoch && st.fence != nil {",
		new: "if epoch == st.epoch && st.fence != nil && st.next > 0 {",
		pkg: "services/chainwriter", test: "TestFenceCutsAndRepeats",
	},
	{
		rule: "no flight leaves beyond the backlog's budget", invariant: "I8", file: "services/chainwriter/flight.go",
		old: "case w.backlog() >= w.cfg.BacklogFlights:",
		new: "case w.backlog() < 0:",
		pkg: "services/chainwriter", test: "TestBacklogStopsFlights",
	},
	{
		rule: "no shard takes more than its turn of a flight", invariant: "I8", file: "services/chainwriter/flight.go",
		old: "turn+size > limit/4",
		new: "turn+size > limit",
		pkg: "services/chainwriter", test: "TestShardsTakeTurns",
	},
	{
		rule: "a chain that broke is not offered", invariant: "I2", file: "services/chainwriter/flight.go",
		old: "case <-w.appender.Broken():",
		new: "case <-make(chan struct{}):",
		pkg: "services/chainwriter", test: "TestBrokenChainIsNotOffered",
	},
	{
		rule: "a chain that broke is sealed in the background", invariant: "I12", file: "services/chainwriter/opening.go",
		old: "if _, ok := w.sealedAt(); ok || s.running.Err() != nil {",
		new: "if _, ok := w.sealedAt(); ok || w.ended {",
		pkg: "services/chainwriter", test: "TestBrokenChainIsNotOffered",
	},
	{
		rule: "a chain is offered when its store, if in doubt, has taken a slot", invariant: "I8", file: "services/chainwriter/opening.go",
		old: "if err != nil || !doubt {",
		new: "if err != nil || doubt {",
		pkg: "services/chainwriter", test: "TestRefusingStoreIsSaid",
	},
	{
		rule: "chains that wait to be sealed are few", invariant: "I8", file: "services/chainwriter/opening.go",
		old: "case s.unsealed >= maxUnsealed:",
		new: "case s.unsealed < 0:",
		pkg: "services/chainwriter", test: "TestRefusingStoreIsSaid",
	},
	{
		rule: "what a second node cannot tell is no answer", invariant: "I4", file: "services/chainwriter/probe_api.go",
		old: "case code == codes.Unavailable, code == codes.DeadlineExceeded:",
		new: "case code != codes.OK:",
		pkg: "services/chainwriter", test: "TestProbe",
	},
	{
		rule: "a fence is passed on to the chain's writer", invariant: "I4", file: "services/chainwriter/api.go",
		old: `a != "" && a != s.cfg.Address {`,
		new: `a == "" && a != s.cfg.Address {`,
		pkg: "services/chainwriter", test: "TestFenceIsPassedOn",
	},
	{
		rule: "a second node decides whether a registered writer is gone", invariant: "I12", file: "services/sequencer/reach.go",
		old: "return c.findThrough(ctx, others, record, err)",
		new: "return route{}, nil",
		pkg: "services/sequencer", test: "TestASecondNodeDecidesWhetherAWriterIsGone",
	},
	{
		rule: "no second opinion is no proof", invariant: "I12", file: "services/sequencer/reach.go",
		old: "alone = false // it might have told",
		new: "alone = true",
		pkg: "services/sequencer", test: "TestNobodyIsSealedOverWithoutASecondOpinion",
	},
	{
		rule: "a writer that answers is not sealed over", invariant: "I12", file: "services/sequencer/chains.go",
		old: "case !reason.Is(err, reason.ChainSealed):",
		new: "case reason.Is(err, reason.StorageDown):",
		pkg: "services/sequencer", test: "TestAWriterThatAnswersIsNotSealedOver",
	},
	{
		rule: "a link that was left delivers nothing", invariant: "I1", file: "services/sequencer/link.go",
		old: "if epoch > l.left[n] {",
		new: "if epoch > 0 {",
		pkg: "services/sequencer", test: "TestALeftLinkDeliversNothing",
	},
	{
		rule: "shards change their chain a few at a time", invariant: "I8", file: "services/sequencer/move.go",
		old: "slices.Chunk(shards, movesAtOnce)",
		new: "slices.Chunk(shards, 5*movesAtOnce)",
		pkg: "services/sequencer", test: "TestShardsLeaveADrainingWriterUnderLoad",
	},
	{
		rule: "a shard that cannot change its chain keeps no other", invariant: "I8", file: "services/sequencer/move.go",
		old: "left = sh.leftLink(patience, l) && left",
		new: "left = sh.leftLink(context.WithoutCancel(patience), l) && left",
		pkg: "services/sequencer", test: "TestAShardThatCannotLeaveKeepsNoOther",
	},
	{
		rule: "a writer that drains is chosen last", invariant: "I8", file: "services/sequencer/choice.go",
		old: "flag(c.draining)-flag(o.draining), ",
		new: "",
		pkg: "services/sequencer", test: "TestChoiceOfAChainWriter",
	},
	{
		rule: "nobody moves for a difference that the move would turn round", invariant: "I8", file: "services/sequencer/move.go",
		old: "own.senders-others[0].senders >= 2:",
		new: "own.senders-others[0].senders >= 1:",
		pkg: "services/sequencer", test: "TestALoneSequencerStays",
	},
	{
		rule: "a choice of a chain-writer stays for a while", invariant: "I8", file: "services/sequencer/move.go",
		old: "balance := !s.now().Before(settled)",
		new: "balance := ctx.Err() == nil || !s.now().Before(settled)",
		pkg: "services/sequencer", test: "TestSequencersSpreadOverWriters",
	},
}
