// Package optional carries optional fields of messages as pointers. In the
// protos such a field is a oneof of one, so that old compilers know it too.
package optional

// Of returns a pointer to v if it is there, else nil:
//
//	optional.Of(req.HasMatchSeq(), req.GetMatchSeq())
func Of[T any](has bool, v T) *T {
	if !has {
		return nil
	}
	return &v
}
