//go:build mutants

package mutants

// sequencerMutants break the rules of numbering, leadership and recovery.
var sequencerMutants = []mutant{
	{
		rule: "a refusal waits until the state it saw is committed", invariant: "I2", file: "services/sequencer/pump.go",
		old: "if k := len(st.inflight); k > 0 {",
		new: "if k := len(st.inflight); k > 0 && w.refusal == nil {",
		pkg: "services/sequencer", test: "TestRefusalIsHeldBack",
	},
	{
		rule: "a repeated batch joins the one under way", invariant: "I5", file: "services/sequencer/pump.go",
		old: "if verdict == head.Duplicate {",
		new: "if verdict == head.Duplicate && dup.Next <= n.st.tail {",
		pkg: "services/sequencer", test: "TestRepeatedBatchJoinsTheFirst",
	},
	{
		rule: "timestamps never decrease", invariant: "I9", file: "services/sequencer/pump.go",
		old: "return max(ts, n.lastTS)",
		new: "return ts",
		pkg: "services/sequencer", test: "TestTimestampsNeverDecrease",
	},
	{
		rule: "room is taken before numbers are given", invariant: "I8", file: "services/sequencer/pool.go",
		old: "+requestOverhead, s.cfg.PoolBytes)",
		new: "/1000, s.cfg.PoolBytes)",
		pkg: "services/sequencer", test: "TestAppendWithoutRoomIsRefused",
	},
	{
		rule: "numbers that were given stay given when the caller leaves", invariant: "I1", file: "services/sequencer/request.go",
		old: "return result{err: reason.WithOutcome(err, reason.Unknown)}",
		new: "return result{err: reason.WithOutcome(err, reason.NotCommitted)}",
		pkg: "services/sequencer", test: "TestNumbersOfACallerThatLeftAreUsed",
	},
	{
		rule: "what was never numbered is not numbered later", invariant: "I2", file: "services/sequencer/request.go",
		old: "if r.taken.CompareAndSwap(requestQueued, requestAbandoned) {",
		new: "if r.taken.Load() == requestQueued {",
		pkg: "services/sequencer", test: "TestRequestThatWasNotNumberedIsGone",
	},
	{
		rule: "behind a failed batch of a session nothing is stored", invariant: "I2", file: "services/sequencer/pump.go",
		old: "if r.session != nil && r.session.failed {",
		new: "if r.session != nil && r.session.failed && r.seal {",
		pkg: "services/sequencer", test: "TestSessionStoresNothingBehindAFailure",
	},
	{
		rule: "readers see only what is committed", invariant: "I3", file: "services/sequencer/state_api.go",
		old: "Trim: uint64(st.trim), Tail: uint64(st.tail),",
		new: "Trim: uint64(st.trim), Tail: uint64(st.tail) + uint64(len(st.inflight)),",
		pkg: "services/sequencer", test: "TestReadersSeeOnlyWhatIsCommitted",
	},
	{
		rule: "a delete commits before the name is free", invariant: "I2", file: "services/sequencer/delete_api.go",
		old: "_, err = s.write(ctx, st, entry)",
		new: "go func() { _, _ = s.write(context.WithoutCancel(ctx), st, entry) }()",
		pkg: "services/sequencer", test: "TestDeleteCommitsBeforeTheNameIsFree",
	},
	{
		rule: "control has its place among appends", invariant: "I2", file: "services/sequencer/pump.go",
		old: "a.Sealed = true\n\t\tn.control(r, nil)",
		new: "n.control(r, nil)",
		pkg: "services/sequencer", test: "TestControlHasItsPlaceAmongAppends",
	},
	{
		rule: "nothing is sent before the binding is confirmed", invariant: "I4", file: "services/sequencer/recovery.go",
		old: "version, err := r.svc.index.PutShard(ctx, &next, r.version)",
		new: "r.shard.lead(r.next, evicted)\nversion, err := r.svc.index.PutShard(ctx, &next, r.version)",
		pkg: "services/sequencer", test: "TestNothingIsSentBeforeTheBindingIsConfirmed",
	},
	{
		rule: "a tail that passed a pending number proves nothing", invariant: "I2", file: "services/sequencer/recovery.go",
		old: "if stream.Epoch(le.GetEpoch()) == r.oldEpoch && e != nil {",
		new: "if e != nil {",
		pkg: "services/sequencer", test: "TestEntryOfAnotherEpochAcknowledgesNothing",
	},
	{
		rule: "what lies below the cut is acknowledged", invariant: "I1", file: "services/sequencer/recovery.go",
		old: "sh.pending = append([]*entry(nil), pending[n:]...)",
		new: "n = 0\nsh.pending = append([]*entry(nil), pending[n:]...)",
		pkg: "services/sequencer", test: "TestPendingIsAcknowledgedOrSentAgain",
	},
	{
		rule: "a takeover starts from all old bindings", invariant: "I1", file: "services/sequencer/recovery.go",
		old: "\t\tif holds {\n",
		new: "\t\tif !holds {\n",
		pkg: "services/sequencer", test: "TestTakeoverKeepsAllBindings",
	},
	{
		rule: "a claim keeps all old bindings", invariant: "I1", file: "services/sequencer/recovery.go",
		old: "cur.State = indexpb.ShardState_SHARD_STATE_RECOVERING",
		new: "cur.State, cur.Bindings = indexpb.ShardState_SHARD_STATE_RECOVERING, nil",
		pkg: "services/sequencer", test: "TestTakeoverKeepsAllBindings",
	},
	{
		rule: "an entry of a stream that left is never sent", invariant: "I1", file: "services/sequencer/shard.go",
		old: "if sh.streams[e.st.id] != e.st {",
		new: "if false {",
		pkg: "services/sequencer", test: "TestAnEntryOfAStreamThatLeftIsNeverSent",
	},
	{
		rule: "what was sent and lost with the leadership is unknown", invariant: "I2", file: "services/sequencer/stream.go",
		old: "if w.refusal != nil || w.settled || !e.sent && w.dup == nil {",
		new: "if w.refusal != nil || w.settled || w.dup == nil {",
		pkg: "services/sequencer", test: "TestSuccessorGoesOn",
	},
	{
		rule: "a commit counts in its epoch and link alone", invariant: "I4", file: "services/sequencer/shard.go",
		old: "if sh.link != l || uint64(sh.epoch) != c.GetEpoch() ||",
		new: "if sh.link != l ||",
		pkg: "services/sequencer", test: "TestCommitOfAnotherEpochIsNotTaken",
	},
	{
		rule: "the chain's record reaches the cut before a stream is opened", invariant: "I1", file: "services/sequencer/open.go",
		old: "if err := chains.absorb(ctx, l.writer, p.chain, p.to); err != nil {",
		new: "if err := ctx.Err(); err != nil {",
		pkg: "services/sequencer", test: "TestOpenAbsorbsThenTouchesThenFolds",
	},
	{
		rule: "the head is touched when a stream is opened", invariant: "I1", file: "libs/catalog/catalog.go",
		old: "h.OpenedEpoch, h.Attempt = epoch, newAttempt()\n",
		new: "h.OpenedEpoch, h.Attempt = epoch, newAttempt()\nif epoch > 0 { return h, nil }\n",
		pkg: "services/sequencer", test: "TestOpenAbsorbsThenTouchesThenFolds",
	},
	{
		rule: "a stream that a later leader opened is not served", invariant: "I4", file: "libs/catalog/catalog.go",
		old: "h.OpenedEpoch, h.Attempt = epoch, newAttempt()",
		new: "h.OpenedEpoch, h.Attempt = max(epoch, h.GetOpenedEpoch()), newAttempt()",
		pkg: "services/sequencer", test: "TestStreamOpenedByALaterLeaderIsNotServed",
	},
	{
		rule: "a stream leaves memory only when it can be read back", invariant: "I1", file: "services/sequencer/evict.go",
		old: "sh.evicted = max(sh.evicted, sh.committedTo)",
		new: "",
		pkg: "services/sequencer", test: "TestIdleStreamsComeBackAsTheyWere",
	},
	{
		rule: "a stream with something under way stays in memory", invariant: "I1", file: "services/sequencer/evict.go",
		old: "len(st.inflight) == 0 && !st.pumping",
		new: "!st.pumping",
		pkg: "services/sequencer", test: "TestBusyStreamsStay",
	},
	{
		rule: "producers are remembered by the next leader", invariant: "I5", file: "libs/head/state.go",
		old: "if b.Producer.ID != \"\" {",
		new: "if b.Producer.ID != \"\" && s.Folded.Epoch == 0 {",
		pkg: "services/sequencer", test: "TestIdleStreamsComeBackAsTheyWere",
	},
	{
		rule: "a lease ends a margin before others may take over", invariant: "I4", file: "services/sequencer/lease.go",
		old: "length := l.ttl - l.margin",
		new: "length := l.ttl + l.margin",
		pkg: "services/sequencer", test: "TestLeaseEndsBeforeOthersMayTakeOver",
	},
	{
		rule: "a lease asks the wall clock too", invariant: "I4", file: "services/sequencer/lease.go",
		old: "&& wall < length && wall > -length",
		new: "&& wall < length",
		pkg: "services/sequencer", test: "TestLeaseEndsBeforeOthersMayTakeOver",
	},
	{
		rule: "a life is declared dead only after its lease and a margin", invariant: "I4", file: "services/sequencer/lease.go",
		old: "s.now().Sub(w.since) < ttl+s.lease.margin",
		new: "s.now().Sub(w.since) < ttl/2",
		pkg: "services/sequencer", test: "TestTwoLeadersNeverAnswerFromMemory",
	},
	{
		rule: "answers from memory need a lease", invariant: "I4", file: "services/sequencer/stream.go",
		old: "case (w.refusal != nil || w.settled) && !st.shard.svc.lease.valid():",
		new: "case w.refusal != nil && w.settled && !st.shard.svc.lease.valid():",
		pkg: "services/sequencer", test: "TestNothingIsAnsweredFromMemoryWithoutALease",
	},
	{
		rule: "reads from memory need a lease", invariant: "I2", file: "services/sequencer/state_api.go",
		old: "if s.lease.valid() {",
		new: "if !s.lease.isLost() {",
		pkg: "services/sequencer", test: "TestNothingIsAnsweredFromMemoryWithoutALease",
	},
	{
		rule: "a holder that lets a shard go answers nothing from memory once the record says so", invariant: "I4", file: "services/sequencer/handoff.go",
		old: "for _, st := range streams {\n\t\tst.leave(why)",
		new: "for _, st := range streams {\n\t\t_, _ = st, why",
		pkg: "services/sequencer", test: "TestNothingIsAnsweredAfterTheRelease",
	},
	{
		rule: "what is under way is decided before a shard is handed over", invariant: "I2", file: "services/sequencer/handoff.go",
		old: "quiet, changed := !sh.quieting, sh.changed",
		new: "quiet, changed := true, sh.changed",
		pkg: "services/sequencer", test: "TestHandoffWaitsForWhatIsUnderWay",
	},
	{
		rule: "a shard that nobody released is not taken", invariant: "I4", file: "services/sequencer/place.go",
		old: "cur.GetState() == indexpb.ShardState_SHARD_STATE_RELEASED\n}",
		new: "cur.GetState() != indexpb.ShardState_SHARD_STATE_UNSPECIFIED\n}",
		pkg: "services/sequencer", test: "TestNothingIsTakenThatWasNotReleased",
	},
	{
		rule: "a shard moves for balance only to a life that is known for a while", invariant: "", file: "services/sequencer/handoff.go",
		old: "now.Sub(since) > settled && now.Sub(to.since) > settled",
		new: "now.Sub(since) > -settled && now.Sub(to.since) > -settled",
		pkg: "services/sequencer", test: "TestShardsMoveToWhereTheyFall",
	},
	{
		rule: "a shard is given away when nothing of it is in memory any more", invariant: "I4", file: "services/sequencer/recovery.go",
		old: "\tsh.empty()\n",
		new: "",
		pkg: "services/sequencer", test: "TestReadsWhileAShardRecovers",
	},
	{
		rule: "who could not look at the lives has not watched them", invariant: "I4", file: "services/sequencer/lease.go",
		old: "if !ok || unwatched ||",
		new: "if !ok || unwatched && !ok ||",
		pkg: "services/sequencer", test: "TestAnOutageOfTheMetastoreKillsNobody",
	},
	{
		rule: "how far a chain is settled is read before the head is touched", invariant: "I1", file: "services/sequencer/open.go",
		old: "st.assigned = head.Read(record)\n",
		new: `for i := range parts {
		s.chains.forget(parts[i].chain)
		if c, err := s.chains.record(ctx, parts[i].chain, parts[i].to); err == nil {
			parts[i].from = min(stream.Slot(c.GetSettledTo()), parts[i].to)
		}
	}
	st.assigned = head.Read(record)
`,
		pkg: "services/sequencer", test: "TestOpeningBesideSettling",
	},
	{
		rule: "an opening whose directories are gone starts again", invariant: "I1", file: "services/sequencer/open.go",
		old: "case reason.Is(err, reason.DirectoryVanished) && vanished < vanishedMost:",
		new: "case reason.Is(err, reason.DirectoryVanished) && vanished < 0:",
		pkg: "services/sequencer", test: "TestOpeningBesideSettling",
	},
	{
		rule: "only coordinates below settled_to are forgotten", invariant: "I2", file: "services/sequencer/settled.go",
		old: "st.pieces[n].slot < below",
		new: "st.pieces[n].slot <= below",
		pkg: "services/sequencer", test: "TestCoordinatesOfWhatIsSettledAreForgotten",
	},
	{
		rule: "coordinates are forgotten in their order", invariant: "I2", file: "services/sequencer/settled.go",
		old: "\t\tif n == first {\n\t\t\tbreak\n",
		new: "\t\tif n == first {\n\t\t\tn++\n",
		pkg: "services/sequencer", test: "TestCoordinatesOfWhatIsSettledAreForgotten",
	},
	{
		rule: "segments of a chain are not merged across another chain", invariant: "I1", file: "services/sequencer/recovery.go",
		old: "return append(slices.Clone(old), &indexpb.Binding{",
		new: `old = slices.DeleteFunc(slices.Clone(old), func(b *indexpb.Binding) bool { return b.GetChainId() == chain })
	return append(old, &indexpb.Binding{`,
		pkg: "services/sequencer", test: "TestBindingsAreSegments",
	},
	{
		rule: "a chain stays bound until it is settled up to its cut", invariant: "I1", file: "services/sequencer/settled.go",
		old: "stream.Slot(b.GetCut()) <= to &&",
		new: "stream.Slot(b.GetCut()) <= to+1 &&",
		pkg: "services/sequencer", test: "TestSettlingBesideLeaders",
	},
	{
		rule: "what was settled while it was pending is acknowledged", invariant: "I1", file: "services/sequencer/recovery.go",
		old: "if gone || h.GetFoldedEpoch() == uint64(r.oldEpoch) &&",
		new: "if gone || h.GetFoldedEpoch() == 0 &&",
		pkg: "services/sequencer", test: "TestPendingThatIsSettledIsAcknowledged",
	},
	{
		rule: "a damaged stream does not hold up its shard", invariant: "I2", file: "services/sequencer/recovery.go",
		old: "if h.GetQuarantine() != \"\" && h",
		new: "if h.GetQuarantine() == \"-\" && h",
		pkg: "services/sequencer", test: "TestADamagedPendingStreamHoldsUpNobody",
	},
	{
		rule: "records that a settler passed over are not forgotten", invariant: "I2", file: "services/sequencer/settled.go",
		old: "case !known.pinned[st.id.String()]:",
		new: "case !known.pinned[\"\"]:",
		pkg: "services/sequencer", test: "TestPinnedRecordsAreNotForgotten",
	},
	{
		rule: "a stream is not deleted for being empty beside an append", invariant: "I2", file: "services/sequencer/pump.go",
		old: "a.Trim != a.Tail || n.behind > 0",
		new: "a.Trim != a.Tail",
		pkg: "services/sequencer", test: "TestDeleteOfAnEmptyStreamBesideAppends",
	},
	{
		rule: "a delete that was refused leads to none later", invariant: "I2", file: "services/sequencer/delete_api.go",
		old: "if entry.match == nil {\n\t\tif err := s.armDelete",
		new: "{\n\t\tif err := s.armDelete",
		pkg: "services/sequencer", test: "TestDeleteOfAnEmptyStream",
	},
}
