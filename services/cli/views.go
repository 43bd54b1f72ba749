package cli

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func bucketView(b *novapb.Bucket) any { return view(b) }

func streamView(s *novapb.Stream, e *novapb.StreamExtent) any {
	out := view(s)
	if e != nil {
		ev := view(e)
		ev["content_hash"] = fmt.Sprintf("%016x", e.GetContentHash())
		out["extent"] = ev
	}
	return out
}

// view is the JSON form of a message: field names as in the API, every number
// a JSON number, enums by name.
func view(m proto.Message) map[string]any {
	out := map[string]any{}
	r := m.ProtoReflect()
	for i := range r.Descriptor().Fields().Len() {
		f := r.Descriptor().Fields().Get(i)
		if f.HasPresence() && !r.Has(f) {
			continue
		}
		out[string(f.Name())] = value(f, r.Get(f))
	}
	return out
}

func value(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch {
	case f.IsMap():
		m := map[string]any{}
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			m[k.String()] = single(f.MapValue(), v)
			return true
		})
		return m
	case f.IsList():
		list := make([]any, v.List().Len())
		for i := range list {
			list[i] = single(f, v.List().Get(i))
		}
		return list
	}
	return single(f, v)
}

func single(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return view(v.Message().Interface())
	case protoreflect.EnumKind:
		if e := f.Enum().Values().ByNumber(v.Enum()); e != nil {
			return string(e.Name())
		}
		return int32(v.Enum())
	default:
		return v.Interface()
	}
}
