package cmd_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// instrument finds where a metric is declared by its whole name.
var instrument = regexp.MustCompile(`(?i)(?:counter|histogram|gauge)\(\s*"((?:nova|rpc)\.[a-z_.]*[a-z])"`)

// Operators find every metric in docs/operations.md. Names that are put
// together, nova.objectstore.<op> and the like, are told there as a pattern.
func TestOperationsPageHasEveryMetric(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, root := range []string{"../../libs", ".."} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range instrument.FindAllSubmatch(source, -1) {
				found++
				if !strings.Contains(string(text), "`"+string(m[1])+"`") {
					t.Errorf("docs/operations.md does not tell of %s (%s)", m[1], path)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 20 {
		t.Errorf("%d metrics were found in the sources: the pattern is wrong", found)
	}
}
