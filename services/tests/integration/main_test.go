package integration

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if dir, err := binaries(); err == nil {
			_ = os.RemoveAll(dir)
		}
		os.Exit(code)
	}))
}
