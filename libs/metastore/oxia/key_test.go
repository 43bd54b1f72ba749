package oxia

import (
	"cmp"
	"strings"
	"testing"

	"github.com/oxia-db/oxia/common/compare"
)

// Whatever the two sort orders of Oxia make of paths, they agree on our keys,
// and with the order of the paths.
func FuzzKeysKeepTheOrderOfPaths(f *testing.F) {
	for _, seed := range [][2]string{
		{"a/b", "a-/b"}, {"a/b", "a./b"}, {"a.b", "a/b"}, {"a.", "a-"}, {"a/", "a0"}, {"a", "a."}, {"..", "./"}, {"a.;b", "a/;b"}, {".-", ".:"},
	} {
		f.Add("p", seed[0], seed[1])
	}
	k := newKeys("nova/prefix.")
	f.Fuzz(func(t *testing.T, partition, a, b string) {
		want := cmp.Compare(a, b)
		ka, kb := k.key(partition, a), k.key(partition, b)
		if strings.Contains(ka+kb, "/") {
			t.Errorf("keys %q and %q have slashes", ka, kb)
		}
		if got := cmp.Compare(ka, kb); got != want {
			t.Errorf("by bytes %q and %q compare %d, their keys %d", a, b, want, got)
		}
		if got := compare.CompareWithSlash([]byte(ka), []byte(kb)); got != want {
			t.Errorf("by segments %q and %q compare %d, their keys %d", a, b, want, got)
		}
		p, path, err := k.parse(ka)
		if err != nil || p != partition || path != a {
			t.Errorf("parse(%q) = %q, %q, %v; want %q, %q", ka, p, path, err, partition, a)
		}
	})
}

func TestForeignKeysAreNotParsed(t *testing.T) {
	k := newKeys("nova")
	for _, key := range []string{"", "__oxia/term", "nova", "nova.;", "nova.;p", "other.;p.;a", "nova.;p.;a/b", "nova.;p.;a.;b", "novae.;p.;a"} {
		if _, _, err := k.parse(key); err == nil {
			t.Errorf("parse(%q) succeeded", key)
		}
	}
}
