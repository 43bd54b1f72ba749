//go:build mutants

package mutants

// indexMutants break the rules of records, names and markers.
var indexMutants = []mutant{
	{
		rule: "after a lost reply the own attempt id means success", invariant: "I6", file: "services/index/rows.go",
		old: "rerr == nil && found.GetAttempt() == m.GetAttempt()",
		new: "rerr == nil && found.GetAttempt() == \"\"",
		pkg: "services/index", test: "TestCreateRecognisesItsOwnWrites",
	},
	{
		rule: "a change that landed is recognised when it is repeated", invariant: "I6", file: "services/index/rows.go",
		old: "case old.GetAttempt() == next.GetAttempt():",
		new: "case next.GetAttempt() == \"\":",
		pkg: "services/index", test: "TestChangeNeedsTheVersionAndRecognisesItself",
	},
	{
		rule: "a change needs the row's version", invariant: "I6", file: "services/index/rows.go",
		old: "if version != want {",
		new: "if want = version; version != want {",
		pkg: "services/index", test: "TestChangeNeedsTheVersionAndRecognisesItself",
	},
	{
		rule: "a repeated change keeps its attempt id", invariant: "I6", file: "libs/catalog/catalog.go",
		old: "\tr.Attempt = newAttempt()\n\tres, err := again(ctx, func() (*indexpb.PutChainResponse, error) {\n",
		new: "\tres, err := again(ctx, func() (*indexpb.PutChainResponse, error) {\n\tr.Attempt = newAttempt()\n",
		pkg: "libs/catalog", test: "TestChangeIsRepeatedWithItsAttempt",
	},
	{
		rule: "a takeover keeps all old bindings", invariant: "I2", file: "services/index/record_api.go",
		old: "if !kept {",
		new: "if !kept && len(next.GetBindings()) == 0 {",
		pkg: "services/index", test: "TestShardEpochsNeverDecreaseAndHaveOneHolder",
	},
	{
		rule: "an epoch has one holder", invariant: "I4", file: "services/index/record_api.go",
		old: "case next.GetHolderLife() != old.GetHolderLife():",
		new: "case old.GetHolderLife() == \"\":",
		pkg: "services/index", test: "TestShardEpochsNeverDecreaseAndHaveOneHolder",
	},
	{
		rule: "a life that is over stays so", invariant: "I4", file: "services/index/record_api.go",
		old: "case old.GetState() != live:",
		new: "case old.GetState() != live && next.GetState() != live:",
		pkg: "services/index", test: "TestLifeThatIsOverStaysSo",
	},
	{
		rule: "a cut that is recorded stays", invariant: "I4", file: "services/index/record_api.go",
		old: "case old.GetState() != open && next.GetCut() != old.GetCut():",
		new: "case old.GetState() != open && next.GetCut() < old.GetCut():",
		pkg: "services/index", test: "TestChainGoesForwardAndItsCutStays",
	},
	{
		rule: "a head that a later leader opened refuses the earlier", invariant: "I4", file: "services/index/record_api.go",
		old: "|| next.GetOpenedEpoch() < old.GetOpenedEpoch():",
		new: ":",
		pkg: "services/index", test: "TestHeadGoesForwardOnly",
	},
	{
		rule: "a directory's row is written once", invariant: "I2", file: "services/index/record_api.go",
		old: "_, err := s.put(ctx, directoryKey(d.GetChainId(), d.GetFrom()), d, metastore.Absent)",
		new: "v, err := s.read(ctx, directoryKey(d.GetChainId(), d.GetFrom()), &indexpb.Directory{})\nif err != nil { v = metastore.Absent }\n_, err = s.put(ctx, directoryKey(d.GetChainId(), d.GetFrom()), d, v)",
		pkg: "services/index", test: "TestDirectoryRowIsWrittenOnce",
	},
	{
		rule: "a name is freed only if it still holds that id", invariant: "I2", file: "services/index/grave.go",
		old: "case !absent && n.GetStreamId() == id:",
		new: "case !absent && n.GetStreamId() != \"\":",
		pkg: "services/index", test: "TestFreeNameThatDiesConverges",
	},
	{
		rule: "an old read does not free a name", invariant: "I2", file: "services/index/grave.go",
		old: "if v, err = s.put(ctx, key, n, metastore.Absent); err != nil {\n\t\t\treturn err\n\t\t}",
		new: "return nil",
		pkg: "services/index", test: "TestOldReadOfANameDecidesNothing",
	},
	{
		rule: "a create changes the bucket's row after it wrote the name", invariant: "I6", file: "services/index/stream_api.go",
		old: "err := s.proveActive(ctx, n.descriptor.GetBucket(), n.descriptor.GetBucketId())",
		new: "_, err := s.active(ctx, n.descriptor.GetBucket())",
		pkg: "services/index", test: "TestCreateBehindABucketDeleteUndoes",
	},
	{
		rule: "a slow armer arms again", invariant: "I11", file: "services/index/bucket_api.go",
		old: "out = r\n\t\tif req.GetForce() {",
		new: "first := out == nil\nout = r\nif req.GetForce() && first {",
		pkg: "services/index", test: "TestForcedBucketDeleteIsArmedAgainWhenItsBucketChanged",
	},
	{
		rule: "a marker is dropped only after its target was changed", invariant: "I11", file: "services/reaper/work.go",
		old: "_, err := s.raw.UpdateBucket(ctx, &indexpb.UpdateBucketRequest{Bucket: m.Due.GetBucket()})",
		new: "_, err := s.raw.GetBucket(ctx, &indexpb.GetBucketRequest{Bucket: m.Due.GetBucket()})",
		pkg: "services/reaper", test: "TestDeleteThatWasNotBegunIsNotFinished",
	},
	{
		rule: "an object that lost is deleted once more days later", invariant: "I11", file: "services/reaper/work.go",
		old: "if !old {\n\t\treturn later{settlesAfter",
		new: "if old && !old {\n\t\treturn later{settlesAfter",
		pkg: "services/reaper", test: "TestDirectoryObjectIsDeletedOnlyWhenItLost",
	},
	{
		rule: "an object that a row names is kept", invariant: "I11", file: "services/reaper/work.go",
		old: "case err == nil && row.GetObject() == m.Due.GetObject():",
		new: "case err == nil && row.GetObject() == \"\":",
		pkg: "services/reaper", test: "TestDirectoryObjectWithoutARowIsWatchedForDays",
	},
}
