// Package catalog is the typed client of the index: the compare-and-set loops
// that every service needs, and a cache of what names mean.
//
// A change carries an attempt id, made here. A call whose reply was lost may
// have landed: it is repeated with the same attempt id, and the index recognises
// it. So a nil error means "it is so", IsConflict means "it is certainly not
// mine", and any other error leaves it unknown.
package catalog
