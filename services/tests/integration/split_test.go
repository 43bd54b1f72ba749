package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/services/tests/constellation"
)

// splitLease is short, so that a killed sequencer is followed soon.
const splitLease = 3 * time.Second

// split is the one constellation of separate processes that all tests share,
// each with a bucket of its own. It is started when first needed.
var split = sync.OnceValues(func() (c *constellation.Constellation, err error) {
	c, err = constellation.Start(context.Background(), "--lease-ttl", splitLease.String())
	started = c
	return c, err
})

var started *constellation.Constellation // by split

// stopSplit is for TestMain.
func stopSplit() error {
	if started == nil {
		return nil
	}
	return started.Stop()
}

// splitShape is every service as processes of their own, over real servers.
type splitShape struct{}

var splitBuckets int

func (splitShape) start(t *testing.T) deployment {
	splitBuckets++
	bucket = fmt.Sprintf("tests-%d", splitBuckets)
	t.Cleanup(func() { bucket = ownBucket })
	return splitDeployment{startSplit(t)}
}

func startSplit(t *testing.T) *constellation.Constellation {
	t.Helper()
	c, err := split()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Said(2 << 10))
		}
	})
	return c
}

// splitDeployment is the shared constellation, of one test.
type splitDeployment struct{ *constellation.Constellation }

func (d splitDeployment) address() string { return d.Endpoint("NOVA_ADDR") }

func (d splitDeployment) http() string { return d.Endpoint("NOVA_HTTP_ADDR") }

// restart leaves the servers, where the storage is.
func (d splitDeployment) restart(t *testing.T) {
	t.Helper()
	names, err := d.Services()
	if err == nil {
		err = d.Down(t.Context(), names...)
	}
	if err == nil {
		err = d.Up(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}
