package integration

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if dir, err := binaries(); err == nil {
			_ = os.RemoveAll(dir)
		}
		if err := split.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the constellation:", err)
		}
		os.Exit(code)
	}))
}
