package s3_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/objectstoretest"
	"github.com/nova-stream/nova/libs/objectstore/probe"
	"github.com/nova-stream/nova/libs/objectstore/s3"
	"github.com/nova-stream/nova/libs/objectstore/s3/s3test"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func configOf(server *s3test.Server, prefix string) s3.Config {
	return s3.Config{
		Bucket: server.Bucket, Endpoint: server.Endpoint, Region: server.Region, PathStyle: true, Prefix: prefix,
		Credentials: server.Credentials(),
	}
}

func mustOpen(t testing.TB, c s3.Config) *s3.Store {
	t.Helper()
	s, err := s3.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// One server and one bucket, which fills up, with and without a prefix.
func TestContractOnARealServer(t *testing.T) {
	server := s3test.Start(t)
	if err := probe.Run(t.Context(), mustOpen(t, configOf(server, ""))); err != nil {
		t.Fatal(err)
	}
	for name, prefix := range map[string]string{"Bare": "", "Prefixed": "constellations/one/"} {
		t.Run(name, func(t *testing.T) {
			objectstoretest.Run(t, func(t *testing.T) objectstore.Store { return mustOpen(t, configOf(server, prefix)) })
		})
	}
}
