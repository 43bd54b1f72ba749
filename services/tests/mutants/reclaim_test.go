//go:build mutants

package mutants

// reclaimMutants break the rules of deleting what nothing names any more.
var reclaimMutants = []mutant{
	{
		rule: "what an export needs that is kept stays until both are younger", invariant: "I11", file: "services/reaper/exports.go",
		old: "if st.GetOldestKept() >= need {",
		new: "if st.GetCompleted() >= need {",
		pkg: "services/reaper", test: "TestNothingGoesWhileExportsFail",
	},
	{
		rule: "an export that has begun does not show what died after", invariant: "I11", file: "services/reaper/exports.go",
		old: "need = st.GetBegun() + 1",
		new: "need = st.GetBegun()",
		pkg: "services/reaper", test: "TestNothingGoesThatAnExportNeeds",
	},
	{
		rule: "a judge changes a head before it looks what that names", invariant: "I11", file: "services/reaper/settled.go",
		old: "h, _, err := s.index.BumpHead(ctx, r.StreamID)",
		new: "h, _, err := s.index.ProvenHead(ctx, r.StreamID)",
		pkg: "services/reaper", test: "TestJudgeNeverDeletesWhatASlowSettlerNames",
	},
	{
		rule: "a judge condemns the object before it looks", invariant: "I11", file: "services/reaper/settled.go",
		old: "\t\tvar err error\n\t\tif version, err = s.index.PutSettled(ctx, row, version); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tm.Due.Since, m.Due.Export = 0, 0\n",
		new: "\t\tc, live, err := s.runsOf(ctx, row)\n\t\tfor _, run := range live {\n\t\t\tif is, _ := c.named(ctx, run); !is {\n\t\t\t\tsettled.Live(row.GetLive()).Clear(run)\n\t\t\t}\n\t\t}\n" +
			"\t\t_, version, _ = s.index.GetSettled(ctx, row.GetObject())\n\t\tif version, err = s.index.PutSettled(ctx, row, version); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tm.Due.Since, m.Due.Export = 0, 0\n",
		pkg: "services/reaper", test: "TestJudgeNeverDeletesWhatASlowSettlerNames",
	},
	{
		rule: "of an object without a row the row is taken from its maker", invariant: "I11", file: "services/reaper/settled.go",
		old: "if version, placed, err = s.place(ctx, key); err != nil {",
		new: "if placed, err = true, nil; err != nil {",
		pkg: "services/reaper", test: "TestSlowMakerFailsAfterItsMarkerWasJudged",
	},
	{
		rule: "an object is deleted once more days later", invariant: "I11", file: "services/reaper/settled.go",
		old: "\t\tm.Due.Since = s.now().UnixMilli()\n\t\treturn later{s.cfg.LateAfter",
		new: "\t\tif version > 0 {\n\t\t\treturn s.index.DeleteSettled(ctx, row.GetObject(), version)\n\t\t}\n\t\treturn later{s.cfg.LateAfter",
		pkg: "services/reaper", test: "TestLatePutOfAnObjectIsDeletedToo",
	},
	{
		rule: "a run's bit is cleared only after its head was looked at", invariant: "I11", file: "services/reaper/unref.go",
		old: "\t\tif is {\n\t\t\tnamed++\n\t\t} else {\n\t\t\tdead.refs",
		new: "\t\tif is {\n\t\t\tnamed++\n\t\t}\n\t\t{\n\t\t\tdead.refs",
		pkg: "services/reaper", test: "TestRefsThatAreNamedStillStay",
	},
	{
		rule: "a head is changed before it is looked at for what it dropped", invariant: "I11", file: "services/reaper/unref.go",
		old: "h, _, err := s.index.BumpHead(ctx, id)",
		new: "h, _, err := s.index.ProvenHead(ctx, id)",
		pkg: "services/reaper", test: "TestRefsThatAreNamedStillStay",
	},
	{
		rule: "before the last run goes the second deletion is armed", invariant: "I11", file: "services/reaper/unref.go",
		old: "if dead && !armed {",
		new: "if dead && armed {",
		pkg: "services/reaper", test: "TestDroppedRefsGoWhereverItDies",
	},
	{
		rule: "a page goes after what is below it", invariant: "I11", file: "services/reaper/unref.go",
		old: "\tif err := d.dropBelow(ctx, p); err != nil {\n\t\treturn err\n\t}\n\treturn d.dropOwn(ctx, p)\n",
		new: "\treturn d.dropBelow(ctx, p)\n",
		pkg: "services/reaper", test: "TestDroppedPagesGoWhereverItDies",
	},
	{
		rule: "nothing at or above settled_to is reclaimed", invariant: "I11", file: "services/reaper/reclaim.go",
		old: "if r.GetSettledTo() < m.Due.GetNumber() {\n\t\treturn nil\n\t}",
		new: "",
		pkg: "services/reaper", test: "TestSlotsThatAreNotSettledStay",
	},
	{
		rule: "a chain's record is changed before its marker is dropped", invariant: "I11", file: "services/reaper/reclaim.go",
		old: "if r, err = s.index.BumpChain(ctx, id.String()); err != nil {",
		new: "if r, _, err = s.index.GetChain(ctx, id.String()); err != nil {",
		pkg: "services/reaper", test: "TestSlotsThatAreNotSettledStay",
	},
	{
		rule: "pinned slots stay", invariant: "I11", file: "services/reaper/reclaim.go",
		old: "if !pinned(slot, slot+1) {",
		new: "if slot < to {",
		pkg: "services/reaper", test: "TestSettledSlotsGoWhereverItDies",
	},
	{
		rule: "directories of pinned slots stay", invariant: "I11", file: "services/reaper/reclaim.go",
		old: "d.GetTo() <= from || pinned(d.GetFrom(), d.GetTo())",
		new: "d.GetTo() <= from",
		pkg: "services/reaper", test: "TestSettledSlotsGoWhereverItDies",
	},
	{
		rule: "the SEAL at the cut stays for ever", invariant: "I4", file: "services/reaper/chain.go",
		old: "for slot := r.GetCut() + 1;",
		new: "for slot := r.GetCut();",
		pkg: "services/reaper", test: "TestChainIsRetiredWhereverItDies",
	},
	{
		rule: "a chain is sealed only when its writer is gone for long", invariant: "I4", file: "services/reaper/chain.go",
		old: "\t\tm.Due.Since = 0\n\t\treturn later{lookAgain, \"the chain's writer is there\"}\n",
		new: "\t\treturn later{lookAgain, \"the chain's writer is there\"}\n",
		pkg: "services/reaper", test: "TestChainOfAWriterThatIsGoneIsSealed",
	},
	{
		rule: "a head goes only after its delete is settled", invariant: "I2", file: "services/reaper/teardown.go",
		old: "return c.GetSettledTo() > h.GetDeletedSlot(), err",
		new: "return c.GetSettledTo() >= h.GetDeletedSlot(), err",
		pkg: "services/reaper", test: "TestDeletedStreamStaysUntilItsDeleteIsSettled",
	},
	{
		rule: "a broken stream that is deleted waits for all its chains", invariant: "I2", file: "services/reaper/teardown.go",
		old: "if !b.GetCutKnown() {",
		new: "if b.GetChainId() == \"\" {",
		pkg: "services/reaper", test: "TestQuarantinedStreamThatIsDeletedWaitsForAllItsChains",
	},
	{
		rule: "what a deleted head names goes before the head does not name it", invariant: "I11", file: "services/reaper/teardown.go",
		old: "\t\t\tif err := d.dropRefs(ctx, h.GetRefs()); err != nil {\n\t\t\t\treturn err\n\t\t\t}\n\t\t\th.Refs = nil\n\t\t\tversion, err = s.index.PutHead(ctx, h, version)\n",
		new: "\t\t\trefs := h.GetRefs()\n\t\t\th.Refs = nil\n\t\t\tif version, err = s.index.PutHead(ctx, h, version); err == nil {\n\t\t\t\tif err := d.dropRefs(ctx, refs); err != nil {\n\t\t\t\t\treturn err\n\t\t\t\t}\n\t\t\t}\n",
		pkg: "services/reaper", test: "TestDeletedStreamGoesWhereverItDies",
	},
	{
		rule: "settings that are an old read trim nothing", invariant: "I2", file: "services/reaper/retention.go",
		old: "if d, err = s.index.FreshDescriptor(ctx, id); err != nil {",
		new: "if d.GetBucket() == \"\" {",
		pkg: "services/reaper", test: "TestOldSettingsTrimNothing",
	},
	{
		rule: "an empty stream is deleted only if it is empty still", invariant: "I2", file: "services/reaper/retention.go",
		old: "IfEmptyAt: state.GetTail()}",
		new: "IfEmptyAt: state.GetTail() + 1}",
		pkg: "services/reaper", test: "TestStreamThatIsEmptyForLongIsDeleted",
	},
	{
		rule: "the delete of an empty stream is asked for again", invariant: "I11", file: "services/reaper/retention.go",
		old: "if err != nil || gone && due.GetNumber() == 0 {",
		new: "if err != nil || gone {",
		pkg: "services/reaper", test: "TestDeleteOfAnEmptyStreamWhoseReplyIsLostIsFinished",
	},
	{
		rule: "what a head names of a page that it does not stays", invariant: "I11", file: "services/reaper/unref.go",
		old: "\t\tif is, err := d.named(ctx, r); err != nil || is {\n\t\t\treturn err\n\t\t}\n\t\trefs = append(refs, r)\n",
		new: "\t\trefs = append(refs, r)\n",
		pkg: "services/reaper", test: "TestPageThatIsWrittenAnewGoesAlone",
	},
	{
		rule: "what is below a page that is trimmed goes before the page, whoever has it go alone", invariant: "I11", file: "services/reaper/unref.go",
		old: "return next <= d.head.GetDroppedTo() }",
		new: "return next <= d.head.GetDroppedTo() && next == 0 }",
		pkg: "services/reaper", test: "TestPageThatIsTrimmedGoesWithAllBelow",
	},
	{
		rule: "a page that is to go alone and is named stays", invariant: "I11", file: "libs/history/walk.go",
		old: "return found == nil || found",
		new: "return found != nil && found",
		pkg: "services/reaper", test: "TestPageThatIsNamedStillStays",
	},
	{
		rule: "before most of an object is dead a marker is armed", invariant: "I8", file: "services/reaper/unref.go",
		old: "if err := s.armCompact(ctx, row, next); err != nil {",
		new: "if err := s.armCompact(ctx, row, row); err != nil {",
		pkg: "services/reaper", test: "TestMostlyDeadObjectIsCompactedWhereverItDies",
	},
	{
		rule: "what is below a page that was trimmed goes before the judge has the page go", invariant: "I11", file: "services/reaper/settled.go",
		old: "return false, d.dropBelow(ctx, p)",
		new: "return false, nil",
		pkg: "services/reaper", test: "TestPageThatIsTrimmedBeforeItsJudgeGoesWithAllBelow",
	},
	{
		rule: "runs of a history that cannot be read are live after a restore", invariant: "I11", file: "services/restore/objects.go",
		old: "func(int) bool { return true })",
		new: "func(run int) bool { return settled.Live(o.live).Has(uint32(run)) })",
		pkg: "services/restore", test: "TestRunsOfAHistoryThatCannotBeReadStay",
	},
	{
		rule: "live bytes are those of the bits", invariant: "I8", file: "libs/catalog/compact.go",
		old: "if bytes == 0 || bytes > r.GetLiveBytes() || !live.Any() {",
		new: "if bytes > r.GetLiveBytes() || !live.Any() {",
		pkg: "libs/catalog", test: "TestClearRun",
	},
}
