// Package s3test starts a real S3 server for a test: versitygw on a free
// loopback port over a temporary directory.
package s3test

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/nova-stream/nova/libs/servertest"
)

// Server is a running server with one empty bucket.
type Server struct {
	Endpoint  string // URL; use path style
	Region    string
	Bucket    string
	AccessKey string
	SecretKey string
}

// Credentials returns the server's only ones.
func (s *Server) Credentials() aws.CredentialsProvider {
	return credentials.NewStaticCredentialsProvider(s.AccessKey, s.SecretKey, "")
}

// Env returns the environment that gives another process the credentials.
func (s *Server) Env() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + s.AccessKey, "AWS_SECRET_ACCESS_KEY=" + s.SecretKey, "AWS_REGION=" + s.Region}
}

const (
	startTimeout = 60 * time.Second
	starts       = 3 // another process may take the port in between
)

// Start starts a server that is stopped at the end of the test. If the test
// fails, the server's log is part of its output. A missing binary fails the test.
func Start(t testing.TB) *Server {
	t.Helper()
	p := servertest.New(t, "versitygw")
	root := t.TempDir()
	var err error
	for range starts {
		var s *Server
		if s, err = start(t.Context(), p, root); err == nil {
			return s
		}
		p.Stop()
		t.Logf("s3test: %v", err)
	}
	t.Fatalf("s3test: versitygw does not start: %v", err)
	return nil
}

func start(ctx context.Context, p *servertest.Process, root string) (*Server, error) {
	ports, err := servertest.FreePorts(1)
	if err != nil {
		return nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	// Credentials of its own, so that another server on the port is not taken
	// for this one.
	s := &Server{
		Endpoint: "http://" + address, Region: "us-east-1", Bucket: "nova-test",
		AccessKey: "test" + rand.Text()[:8], SecretKey: rand.Text(),
	}
	err = p.Start(nil, "--access", s.AccessKey, "--secret", s.SecretKey, "--region", s.Region,
		"--port", address, "--health", "/healthz", "--keep-alive", "posix", root)
	if err != nil {
		return nil, err
	}
	return s, s.makeBucket(ctx, p.Exited())
}

// makeBucket asks until the server is up.
func (s *Server) makeBucket(ctx context.Context, exited <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	api := s3.New(s3.Options{
		BaseEndpoint: &s.Endpoint, Region: s.Region, Credentials: s.Credentials(), UsePathStyle: true,
		Retryer: aws.NopRetryer{}, HTTPClient: closing{},
	})
	for {
		_, err := api.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &s.Bucket})
		if err == nil {
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("it exited: %w", err)
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}
