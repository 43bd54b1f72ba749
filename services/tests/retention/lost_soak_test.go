//go:build soak

package retention

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// TestSoakLost loses the metastore in ever other ways for NOVA_SOAK, an hour if unset:
// every tenth time until nothing is left to do.
func TestSoakLost(t *testing.T) {
	length := time.Hour
	if text := os.Getenv("NOVA_SOAK"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("NOVA_SOAK: %v", err)
		}
	}
	seed := uint64(time.Now().UnixNano()) >> 20
	if os.Getenv("NOVA_SEED") != "" {
		seed = lossSeed(t)
	}
	for began := time.Now(); time.Since(began) < length && !t.Failed(); seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { loseRepeatedly(t, seed, 8+int(seed%24), 2+int(seed%4), seed%10 == 0) })
	}
}
