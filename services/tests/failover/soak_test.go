//go:build soak

package failover

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nova-stream/nova/services/tests/constellation"
)

// soakLength is how long TestSoak fights.
func soakLength(t *testing.T) time.Duration {
	text := os.Getenv("NOVA_SOAK")
	if text == "" {
		return time.Hour
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("NOVA_SOAK: %v", err)
	}
	return d
}

// The fights of make test, for hours: a third of the time on a pair, the rest on
// separate processes.
func TestSoak(t *testing.T) {
	length := soakLength(t)
	t.Run("pair", func(t *testing.T) { fightPair(t, pairPlan, length/3) })
	t.Run("split", func(t *testing.T) { fightSplit(t, splitPlan, length-length/3) })
}

// Every kind of process, or those that NOVA_SOAK_KINDS names with commas between,
// is killed NOVA_SOAK_ROUNDS times, 20 by default. The promise: a stream is silent for no longer than a lease
// and two seconds.
func TestSoakKills(t *testing.T) {
	c := split.For(t)
	all, err := kinds(c)
	if err != nil {
		t.Fatal(err)
	}
	if named := os.Getenv("NOVA_SOAK_KINDS"); named != "" {
		all = strings.Split(named, ",")
	}
	rounds := 20
	if text := os.Getenv("NOVA_SOAK_ROUNDS"); text != "" {
		if rounds, err = strconv.Atoi(text); err != nil || rounds < 1 {
			t.Fatalf("NOVA_SOAK_ROUNDS: %q is no number above 0", text)
		}
	}
	s := killRounds(t, rounds, all)
	t.Logf("\n%v", s)
	for kind, took := range s {
		for _, d := range took {
			if !server(kind) && d > splitLease+2*time.Second {
				t.Errorf("a stream was silent for %v after a %s was killed, the lease is %v", d, kind, splitLease)
			}
		}
	}
}

// kinds are the services of a constellation, and the servers it needs.
func kinds(c *constellation.Constellation) ([]string, error) {
	names, err := c.All()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var all []string
	for _, name := range names {
		all = append(all, kindOf(name))
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
