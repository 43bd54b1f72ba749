package constellation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// LoseMetastore kills every service and the metastore at once, removes all rows, has
// `novad restore` make them again from the bucket, and starts everything. It returns
// what the restore said.
func (c *Constellation) LoseMetastore(ctx context.Context) (string, error) {
	names, err := c.Services()
	if err != nil {
		return "", err
	}
	names = append(names, "oxia")
	for _, name := range names {
		// One that ended by itself is not there.
		if err := c.signal(name, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return "", fmt.Errorf("kill %s: %w", name, err)
		}
	}
	if err := c.restartGone(ctx, "oxia", func() error { return os.RemoveAll(filepath.Join(c.dir, "data", "oxia")) }); err != nil {
		return "", err
	}
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "NOVA_") {
			env = append(env, v)
		}
	}
	for _, key := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"} {
		env = append(env, key+"="+c.Endpoint(key))
	}
	cmd := exec.CommandContext(ctx, filepath.Join(c.dir, "bin", "novad"), "restore", "--oxia", c.Endpoint("OXIA_ADDR"),
		"--s3-bucket", c.Endpoint("S3_BUCKET"), "--s3-endpoint", c.Endpoint("S3_ENDPOINT"), "--s3-path-style", "--log-level", "info")
	cmd.Env = env
	said, err := cmd.CombinedOutput()
	if err != nil {
		return string(said), fmt.Errorf("novad restore: %w\n%s", err, said)
	}
	return string(said), c.Up(ctx)
}

// restartGone starts a process again that was killed, once it is gone and between was
// called.
func (c *Constellation) restartGone(ctx context.Context, name string, between func() error) error {
	const patience = time.Minute
	for began := time.Now(); ; {
		err := c.signal(name, 0)
		if errors.Is(err, syscall.ESRCH) {
			break
		}
		if err != nil || time.Since(began) > patience || ctx.Err() != nil {
			return fmt.Errorf("%s is not gone: %w", name, errors.Join(err, ctx.Err()))
		}
		time.Sleep(10 * time.Millisecond) // polls
	}
	if err := between(); err != nil {
		return err
	}
	return c.Restart(ctx, name)
}
