package failover

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := split.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the constellation:", err)
		}
		os.Exit(code)
	}))
}
