package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/nova-stream/nova/services/tests/constellation"
)

// splitLease is short, so that a killed sequencer is followed soon.
const splitLease = 3 * time.Second

// split is the one constellation of separate processes that all tests share,
// each with a bucket of its own.
var split = constellation.Shared{Flags: []string{"--lease-ttl", splitLease.String()}}

// splitShape is every service as processes of their own, over real servers.
type splitShape struct{}

var splitBuckets int

func (splitShape) start(t *testing.T) deployment {
	splitBuckets++
	bucket = fmt.Sprintf("tests-%d", splitBuckets)
	t.Cleanup(func() { bucket = ownBucket })
	return splitDeployment{split.For(t)}
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
