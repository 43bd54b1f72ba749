// Package s3test starts a real S3 server for a test: versitygw on a free
// loopback port over a temporary directory.
package s3test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
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
	startTimeout = 20 * time.Second
	stopTimeout  = 5 * time.Second
	starts       = 3 // another process may take the port in between
)

// Start starts a server that is stopped at the end of the test. If the test
// fails, the server's log is part of its output. A missing binary fails the test.
func Start(t testing.TB) *Server {
	t.Helper()
	binary := find(t, "versitygw")
	var err error
	for range starts {
		var s *Server
		if s, err = start(t, binary); err == nil {
			return s
		}
		t.Logf("s3test: %v", err)
	}
	t.Fatalf("s3test: versitygw does not start: %v", err)
	return nil
}

// find returns the path of a pinned tool: in $NOVA_TOOLS, or in .tools/bin of
// the repository.
func find(t testing.TB, name string) string {
	t.Helper()
	var dirs []string
	if dir := os.Getenv("NOVA_TOOLS"); dir != "" {
		dirs = []string{dir}
	} else {
		dir, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			dirs = append(dirs, filepath.Join(dir, ".tools", "bin"))
		}
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if fi, err := os.Stat(path); err == nil && !fi.IsDir() {
			return path
		}
	}
	t.Fatalf("s3test: %s is not in %v: run make tools", name, dirs)
	return ""
}

func start(t testing.TB, binary string) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	// Credentials of its own, so that another server on the port is not taken
	// for this one.
	s := &Server{
		Endpoint: "http://" + port, Region: "us-east-1", Bucket: "nova-test",
		AccessKey: "test" + rand.Text()[:8], SecretKey: rand.Text(),
	}
	root, logs := t.TempDir(), filepath.Join(t.TempDir(), "versitygw.log")
	log, err := os.Create(logs)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(binary, "--access", s.AccessKey, "--secret", s.SecretKey, "--region", s.Region,
		"--port", port, "--health", "/healthz", "--keep-alive", "posix", root)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		_ = log.Close()
		return nil, err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		_ = log.Close()
		close(exited)
	}()
	t.Cleanup(func() {
		stop(cmd, exited)
		if t.Failed() {
			if text, err := os.ReadFile(logs); err == nil {
				t.Logf("versitygw (pid %d) said:\n%s", cmd.Process.Pid, tail(text, 16<<10))
			}
		}
	})
	if err := s.makeBucket(t.Context(), exited); err != nil {
		stop(cmd, exited)
		text, _ := os.ReadFile(logs)
		return nil, fmt.Errorf("%w\n%s", err, tail(text, 4<<10))
	}
	return s, nil
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func stop(cmd *exec.Cmd, exited <-chan struct{}) {
	_ = cmd.Process.Signal(os.Interrupt)
	select {
	case <-exited:
	case <-time.After(stopTimeout):
		_ = cmd.Process.Kill()
		<-exited
	}
}

func tail(text []byte, n int) []byte { return text[max(0, len(text)-n):] }

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
