//go:build mutants

package mutants

// settleMutants break the rules of settling.
var settleMutants = []mutant{
	{
		rule: "a shard's lower chain is settled first", invariant: "I1", file: "services/settler/span.go",
		old: "if settled < b.GetCut() {",
		new: "if settled > b.GetCut() {",
		pkg: "services/settler", test: "TestLowerChainIsSettledFirst",
	},
	{
		rule: "a shard's record that does not know an epoch is an old read", invariant: "I1", file: "services/settler/span.go",
		old: "if r.GetEpoch() < uint64(e) {",
		new: "if r.GetEpoch() == 0 {",
		pkg: "services/settler", test: "TestOldShardRecordDecidesNothing",
	},
	{
		rule: "a binding's chain holds the epochs from its own on", invariant: "I1", file: "services/settler/span.go",
		old: "if at < 0 || bindings[at].GetChainId() != o.name {",
		new: "if at < 0 {",
		pkg: "services/settler", test: "TestOldShardRecordDecidesNothing",
	},
	{
		rule: "after a lost change of a head its objects are touched again", invariant: "I11", file: "services/settler/adopt.go",
		old: "touch := named\n",
		new: "touch := pages\n",
		pkg: "services/settler", test: "TestCondemnedObjectIsNotNamed",
	},
	{
		rule: "a head that moved is folded anew", invariant: "I1", file: "services/settler/adopt.go",
		old: "|| !same(h, p.head) {",
		new: "{",
		pkg: "services/settler", test: "TestHeadThatMovedIsFoldedAnew",
	},
	{
		rule: "a run that a head may name stays live", invariant: "I11", file: "services/settler/adopt.go",
		old: "if at.tried && !at.named {",
		new: "if at.tried && len(o.placed) == 0 {",
		pkg: "services/settler", test: "TestUncertainRunIsLeftToItsJudge",
	},
	{
		rule: "what a head drops has a marker first", invariant: "I11", file: "services/settler/adopt.go",
		old: "for len(refs)+len(pages) > 0 {",
		new: "for len(refs)+len(pages) > maxDead {",
		pkg: "services/settler", test: "TestTrimDropsRefs",
	},
	{
		rule: "an object has a marker of its own queue first", invariant: "I11", file: "services/settler/write.go",
		old: "Queue: queueSettled, At:",
		new: "Queue: queueUnref, At:",
		pkg: "services/settler", test: "TestDiesAnywhereAndTheNextFinishes",
	},
	{
		rule: "what is trimmed is not stored", invariant: "I2", file: "services/settler/plan.go",
		old: "return p.state.Deleted || e.Chunk.Next() <= p.state.Trim",
		new: "return p.state.Deleted",
		pkg: "services/settler", test: "TestTrimmedChunksAreNotStored",
	},
	{
		rule: "settled_to moves when all heads are done", invariant: "I2", file: "services/settler/span.go",
		old: "for round := 0; len(todo) > 0; round++ {",
		new: "for round := 0; len(todo) > 0 && round < 1; round++ {",
		pkg: "services/settler", test: "TestCondemnedObjectIsNotNamed",
	},
	{
		rule: "slots of a quarantined stream are pinned by what moves settled_to", invariant: "I2", file: "services/settler/span.go",
		old: "joinPins(r.GetPins(), s.pins)",
		new: "joinPins(r.GetPins(), nil)",
		pkg: "services/settler", test: "TestQuarantinedStreamKeepsItsSlots",
	},
	{
		rule: "that a stream is quarantined is proven by a change", invariant: "I2", file: "services/settler/plan.go",
		old: "if _, err := s.index.PutHead(ctx, p.head, p.version); err != nil {",
		new: "if err := ctx.Err(); err != nil {",
		pkg: "services/settler", test: "TestLiftedQuarantineIsFolded",
	},
	{
		rule: "an absent head alone passes over nothing", invariant: "I2", file: "services/settler/plan.go",
		old: "if r.GetSettledTo() >= uint64(s.to) {",
		new: "if r.GetSettledTo() <= uint64(s.to) {",
		pkg: "services/settler", test: "TestAbsentHead",
	},
	{
		rule: "a stream is quarantined only when it is found broken twice", invariant: "I2", file: "services/settler/plan.go",
		old: "\tif p.failed == nil {\n",
		new: "\tif p.failed != nil {\n",
		pkg: "services/settler", test: "TestDamageOnTheWayQuarantinesNobody",
	},
	{
		rule: "what a rewrite drops has a marker first", invariant: "I11", file: "services/settler/plan.go",
		old: "dead = append(dead, replaced...)",
		new: "_ = replaced",
		pkg: "services/settler", test: "TestRunsOfManySpansBecomeFew",
	},
	{
		rule: "a rewritten run holds all records of those that it replaces", invariant: "I2", file: "services/settler/rewrite.go",
		old: "if next > from {",
		new: "if next > from && n > 0 {",
		pkg: "services/settler", test: "TestTrimAmongWhatIsRewritten",
	},
	{
		rule: "what is in front of rewritten runs stays", invariant: "I2", file: "services/settler/rewrite.go",
		old: "next.Refs = next.GetRefs()[:keep]",
		new: "next.Refs = next.GetRefs()[:keep/2]",
		pkg: "services/settler", test: "TestRunsOfManySpansBecomeFew",
	},
	{
		rule: "what cannot be merged with old runs is no damage of the log", invariant: "I10", file: "services/settler/write.go",
		old: "case p.rewrite != nil:",
		new: "case p.rewrite != nil && w.runs < 0:",
		pkg: "services/settler", test: "TestWhatCannotBeReadIsNotRewritten",
	},
	{
		rule: "a head whose runs are gone is an old read first", invariant: "I6", file: "services/settler/rewrite.go",
		old: "&& p.gone < rewriteTries {",
		new: "&& p.gone < 0 {",
		pkg: "services/settler", test: "TestOldHeadWhoseRunsAreGone",
	},
	{
		rule: "a run that was rewritten is of the next generation", invariant: "I8", file: "services/settler/rewrite.go",
		old: "generation: highest + 1}",
		new: "generation: highest}",
		pkg: "services/settler", test: "TestRunsOfManySpansBecomeFew",
	},
	{
		rule: "what is rewritten fits into the memory", invariant: "I8", file: "services/settler/rewrite.go",
		old: "size+int64(r.GetLength()) > room",
		new: "size > 16*room",
		pkg: "services/settler", test: "TestWhatIsRewritten",
	},
	{
		rule: "a quarantine is lifted by the change that folds what is pinned", invariant: "I2", file: "services/settler/repair.go",
		old: "			p.unfolded = append(p.unfolded, e)",
		new: "			p.unfolded = nil",
		pkg: "services/settler", test: "TestRepairFoldsWhatIsPinned",
	},
	{
		rule: "pins are recorded for a stream that is quarantined still", invariant: "I2", file: "services/settler/repair.go",
		old: "case h.GetQuarantine() == \"\" && h.GetState() != indexpb.HeadState_HEAD_STATE_DELETED:",
		new: "case h == nil:",
		pkg: "services/settler", test: "TestRepairBesideASettlerThatIsHeldUp",
	},
	{
		rule: "a repair bumps the head before it looks what is pinned", invariant: "I2", file: "services/settler/repair.go",
		old: "	records, err := r.records(ctx, h)\n",
		new: "	records, err := r.records(ctx, h)\n	h, version, _ = r.index.BumpHead(ctx, r.id)\n",
		pkg: "services/settler", test: "TestRepairBesideASettlerThatIsHeldUp",
	},
	{
		rule: "a change that lifts a quarantine and is lost looks at the pins anew", invariant: "I2", file: "services/settler/adopt.go",
		old: "if p.lift {",
		new: "if p.lift && p.head == nil {",
		pkg: "services/settler", test: "TestRepairBesideASettlerThatIsHeldUp",
	},
	{
		rule: "the row of a copy is touched after the heads were read", invariant: "I11", file: "services/settler/compact.go",
		old: "if err := o.touch(ctx); err != nil {\n\t\treturn nil, err\n\t}\n\tif o.isCondemned() {",
		new: "if o.isCondemned() {",
		pkg: "services/settler", test: "TestCondemnedCopyIsNotNamed",
	},
	{
		rule: "the run that is copied is of a marker first", invariant: "I11", file: "services/settler/compact.go",
		old: "dead := []*indexpb.Ref{p.move}",
		new: "dead := []*indexpb.Ref{}",
		pkg: "services/settler", test: "TestWhatIsNamedMovesOutOfADeadObject",
	},
	{
		rule: "pages that are written anew have a marker first", invariant: "I11", file: "services/settler/compact.go",
		old: "for _, page := range pages {",
		new: "for _, page := range pages[:0] {",
		pkg: "services/settler", test: "TestWhatIsNamedMovesOutOfADeadObject",
	},
	{
		rule: "copies are shared by streams of like limits", invariant: "I8", file: "services/settler/compact.go",
		old: "|| m.kin != moves[0].kin)",
		new: ")",
		pkg: "services/settler", test: "TestWhatIsNamedMovesOutOfADeadObject",
	},
	{
		rule: "the row of an object is changed before it is looked at", invariant: "I8", file: "services/settler/compact.go",
		old: "\t\treturn true, nil\n",
		new: "\t\treturn live == 0, nil\n",
		pkg: "services/settler", test: "TestRowIsChangedBeforeItIsLookedAt",
	},
	{
		rule: "an object that a quarantined stream keeps is left", invariant: "I8", file: "services/settler/compact.go",
		old: "if err != nil || c.kept > 0 {",
		new: "if err != nil {",
		pkg: "services/settler", test: "TestQuarantinedStreamKeepsItsObject",
	},
	{
		rule: "enough that is live is not copied", invariant: "I8", file: "services/settler/compact.go",
		old: "case !catalog.MostlyDead(row):",
		new: "case row == nil:",
		pkg: "services/settler", test: "TestObjectOfWhichEnoughIsLiveStays",
	},
}
