package s3_test

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/s3"
)

// A second server, with habits of its own: it refuses over-long suffixes.
func TestInProcessServer(t *testing.T) {
	backend := s3mem.New()
	if err := backend.CreateBucket("b"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server())
	t.Cleanup(server.Close)
	ctx := t.Context()
	s := mustOpen(t, s3.Config{
		Bucket: "b", Endpoint: server.URL, PathStyle: true, Prefix: "p/",
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", ""),
	})
	if _, err := s.PutIfAbsent(ctx, "a/k", []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutIfAbsent(ctx, "a/k", []byte("0123456789")); !errors.Is(err, objectstore.ErrExists) {
		t.Errorf("second put: %v", err)
	}
	for want, r := range map[string]objectstore.Range{"789": {Offset: -3}, "0123456789": {Offset: -11}, "34": {Offset: 3, Length: 2}} {
		if o, err := s.GetRange(ctx, "a/k", r); err != nil || string(o.Body) != want || o.Size != 10 {
			t.Errorf("GetRange(%+v): %q of %d, %v", r, o.Body, o.Size, err)
		}
	}
	if _, err := s.PutIfAbsent(ctx, "a/empty", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GetRange(ctx, "a/empty", objectstore.Range{Offset: -3}); !errors.Is(err, objectstore.ErrRange) {
		t.Errorf("suffix of an empty object: %v", err)
	}
	if infos, err := s.List(ctx, "", "", 10); err != nil || len(infos) != 2 || infos[1].Key != "a/k" {
		t.Errorf("List: %v, %v", infos, err)
	}
	if err := s.Delete(ctx, "a/k", "a/empty", "a/none"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, "a/k"); !errors.Is(err, objectstore.ErrNotFound) {
		t.Errorf("Get after Delete: %v", err)
	}
	missing := mustOpen(t, s3.Config{
		Bucket: "nowhere", Endpoint: server.URL, PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", ""),
	})
	if _, err := missing.PutIfAbsent(ctx, "k", nil); !errors.Is(err, objectstore.ErrPermanent) || !strings.Contains(err.Error(), "--s3-bucket") {
		t.Errorf("put without a bucket: %v", err)
	}
}

func TestConfigNamesTheFlag(t *testing.T) {
	// Nothing of the machine's own environment.
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
	static := credentials.NewStaticCredentialsProvider("id", "secret", "")
	for says, c := range map[string]s3.Config{
		"--s3-bucket":             {Credentials: static},
		`"localhost:9000" is not`: {Bucket: "b", Endpoint: "localhost:9000", Credentials: static},
		"--s3-endpoint":           {Bucket: "b", Endpoint: "ftp://h", Credentials: static},
		"--s3-region":             {Bucket: "b", Credentials: static},
		"--s3-prefix: at most":    {Bucket: "b", Region: "r", Prefix: strings.Repeat("p", 124) + "/", Credentials: static},
		`--s3-prefix: "p"`:        {Bucket: "b", Region: "r", Prefix: "p", Credentials: static},
		`--s3-prefix: "/p/"`:      {Bucket: "b", Region: "r", Prefix: "/p/", Credentials: static},
		"AWS_ACCESS_KEY_ID":       {Bucket: "b", Region: "r"},
	} {
		s, err := s3.Open(t.Context(), c)
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Open(%+v): %v; want %q", c, err, says)
		}
	}
}
