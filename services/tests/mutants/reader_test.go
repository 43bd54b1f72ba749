//go:build mutants

package mutants

// readerMutants break the rules of what a reader believes.
var readerMutants = []mutant{
	{
		rule: "a head that does not reach what is settled is an old read", invariant: "I2", file: "services/reader/settled.go",
		old: "return max(history.Next(h), stream.Seq(h.GetDroppedTo())) >= reach",
		new: "return true",
		pkg: "services/reader", test: "TestOldHeadsAreReadAgain",
	},
	{
		rule: "what follows settled records continues their content hash", invariant: "I10", file: "services/reader/page.go",
		old: "if before := hashAt(d, j, &p.scratch); before != c.after {",
		new: "if before := hashAt(d, j, &p.scratch); before == 0 && c.after != 0 {",
		pkg: "services/reader", test: "TestSlotsContinueWhatIsSettled",
	},
	{
		rule: "whole chunks continue what was taken before", invariant: "I10", file: "services/reader/page.go",
		old: "if c.taken && h.HashBefore != c.after {",
		new: "if c.taken && h.HashBefore == 0 && c.after != 0 {",
		pkg: "services/reader", test: "TestSlotsContinueWhatIsSettled",
	},
	{
		rule: "a chunk is passed on whole only from its first record on", invariant: "I2", file: "services/reader/page.go",
		old: "case h.BaseSeq != c.next, c.from != nil,",
		new: "case",
		pkg: "services/reader", test: "TestChunksArePassedOnWhole",
	},
	{
		rule: "a chunk is verified before it is passed on whole", invariant: "I10", file: "services/reader/chunks.go",
		old: "d.header, d.payload, err = chunk.Split(b)",
		new: "var n int\n\t\td.header, n, err = chunk.ParseHeader(b)\n\t\td.payload = b[n:]",
		pkg: "services/reader", test: "TestDamageOfSettledRecordsIsDataLoss",
	},
	{
		rule: "a frame is what ref and index say", invariant: "I10", file: "services/reader/chunks.go",
		old: "if err := p.told(h); err != nil {",
		new: "if err := p.told(h); err != nil && p.slot {",
		pkg: "services/reader", test: "TestRefsThatLieAreDamage",
	},
	{
		rule: "a run is what its ref says", invariant: "I1", file: "services/reader/settled.go",
		old: "return frames, checkFrames(r, frames)",
		new: "return frames, nil",
		pkg: "services/reader", test: "TestRefsThatLieAreDamage",
	},
	{
		rule: "a head whose refs lead nowhere is read again", invariant: "I2", file: "services/reader/fetch.go",
		old: "s.known.heads.Invalidate(id)\n",
		new: "",
		pkg: "services/reader", test: "TestGoneObjectsAreLookedForAnew",
	},
	{
		rule: "another's bytes in a slot are as a slot that is gone", invariant: "I2", file: "services/reader/fetch.go",
		old: "*before == *damaged && !damaged.foreign",
		new: "*before == *damaged",
		pkg: "services/reader", test: "TestDamageIsDataLoss",
	},
	{
		rule: "a seek by time does not look below the trim", invariant: "I2", file: "services/reader/settled.go",
		old: "h.GetDroppedTo() < dropped {",
		new: "h.GetDroppedTo() < dropped && dropped == 0 {",
		pkg: "services/reader", test: "TestReadsOfRandomHistoriesEqualTheModel",
	},
	{
		rule: "what seems to leak is judged by rows read after it was met", invariant: "I11", file: "services/reader/verify_objects.go",
		old: "v.suspects = append(v.suspects, s)\n",
		new: "v.counted.Findings = append(v.counted.Findings, found...)\n",
		pkg: "services/reader", test: "TestSurveyOfARunningConstellation",
	},
}
