package chunk

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nova-stream/nova/libs/stream"
)

// The vectors of docs/formats.md, computed with the reference implementation of
// XXH3 in C: clients in any language must get the same.
func TestHashVectors(t *testing.T) {
	for _, v := range []struct {
		name string
		prev stream.Hash
		r    stream.Record
		want stream.Hash
	}{
		{name: "empty record", want: 0xa057271c9071c99d},
		{name: "hello", r: stream.Record{Timestamp: 1700000000000, Body: []byte("hello")}, want: 0x28f3440bd17406d1},
		{name: "after hello", prev: 0x28f3440bd17406d1, r: stream.Record{Seq: 1, Timestamp: 1700000000001, Body: []byte("world")}, want: 0xa9fc2d05d4720f7a},
		{
			name: "headers", r: stream.Record{
				Seq: 7, Timestamp: 1, Body: []byte{0, 0xff},
				Headers: []stream.Header{{Name: []byte("n"), Value: []byte("v")}, {Name: []byte("n")}},
			}, want: 0x5d491136b9b90d14,
		},
		{name: "all bits set", prev: ^stream.Hash(0), r: stream.Record{Seq: ^stream.Seq(0), Timestamp: -1}, want: 0x385eb1ecdb1fcd09},
	} {
		got, _ := HashRecord(v.prev, &v.r, nil)
		if got != v.want {
			t.Errorf("%s: %016x, want %016x", v.name, uint64(got), uint64(v.want))
		}
	}
}

func TestHashNeedsNoAllocation(t *testing.T) {
	r := recordsOf(sample())[2]
	_, scratch := HashRecord(0, &r, nil)
	if n := testing.AllocsPerRun(100, func() { _, scratch = HashRecord(1, &r, scratch) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The document shows the vectors and the golden chunk that the tests use.
func TestDocument(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "formats.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"a057271c9071c99d", "28f3440bd17406d1", "a9fc2d05d4720f7a", "5d491136b9b90d14", "385eb1ecdb1fcd09"} {
		if !bytes.Contains(doc, []byte("`"+v+"`")) {
			t.Errorf("docs/formats.md lacks the hash %s", v)
		}
	}
	b, _ := mustEncode(t, sample())
	text := strings.Join(strings.Fields(string(doc)), "")
	if !strings.Contains(text, hex.EncodeToString(b)) {
		t.Error("docs/formats.md lacks the golden chunk")
	}
}
