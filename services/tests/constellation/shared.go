package constellation

import (
	"context"
	"sync"
	"testing"
)

// Shared is one constellation for the tests of a package. It is started when it
// is first needed; stop it in TestMain.
type Shared struct {
	// Flags are those of deploy/local/up.
	Flags []string
	// More are flags of programs, by the program's name. They are words of a shell
	// that knows what is in run/endpoints.env.
	More map[string][]string

	once sync.Once
	c    *Constellation
	err  error
}

// For returns it to a test. If that fails, the ends of all logs are part of its
// output.
func (s *Shared) For(t *testing.T) *Constellation {
	t.Helper()
	s.once.Do(func() { s.c, s.err = Start(context.Background(), s.More, s.Flags...) })
	if s.err != nil {
		t.Fatal(s.err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.c.Said(3 << 10))
		}
	})
	return s.c
}

// Stop stops it, if it was started.
func (s *Shared) Stop() error {
	if s.c == nil {
		return nil
	}
	return s.c.Stop()
}
