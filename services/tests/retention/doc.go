// Package retention proves that retention works and leaks nothing: a day and some
// more of a constellation, in fake time.
//
// The services are the real ones, over stores in memory, and several of each kind
// that works in the background. A thousand streams of mixed rates and limits are
// appended to, trimmed, deleted and made again, while processes die and come back,
// and while streams are read and compared with a model, byte for byte. In the end
// the rest of the work is waited for, and every object and every row that is there
// must have a reason.
//
// The same, smaller, loses the metastore again and again, restores it from the bucket
// while clients wait for their answers, and goes on (lost_test.go).
//
// What a record's limit means, and by how much it may be exceeded, is in
// model_test.go; what may be left in the end is in end_test.go.
package retention
