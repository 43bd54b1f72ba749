package node

import (
	"strings"
	"testing"

	"github.com/nova-stream/nova/libs/objectstore/s3"
)

// Whoever reads why a program ended must know which flag to look at.
func TestAStoreThatCannotBeReachedIsNamedByItsFlags(t *testing.T) {
	p := &Process{}
	defer func() { _ = p.Close() }()
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	o := &Objects{S3: s3.Config{Bucket: "records", Endpoint: "http://127.0.0.1:1", PathStyle: true}}
	_, err := p.OpenObjects(t.Context(), o, nil)
	if err == nil {
		t.Fatal("an object store where nothing listens was opened")
	}
	for _, want := range []string{"--s3-bucket records", "--s3-endpoint http://127.0.0.1:1", "connection refused"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}
