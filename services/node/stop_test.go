package node

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/discovery"
)

// stubborn is an endpoint whose callers do not go.
type stubborn struct {
	grpc.ServiceRegistrar
	name  string
	diary *diary
	left  time.Duration // what it had when it was stopped
}

func (s *stubborn) Address() string { return "test:" + s.name }

func (s *stubborn) RegisterService(*grpc.ServiceDesc, any) {}

func (s *stubborn) Start() {}

func (s *stubborn) Stop(ctx context.Context) {
	if at, ok := ctx.Deadline(); ok {
		s.left = time.Until(at)
	}
	s.diary.note("%s refuses", s.name)
	<-ctx.Done()
	s.diary.note("%s cancels", s.name)
}

// Calls under way have one deadline over all services, not one for each; those
// that come last have a little of their own. A listener stops before the endpoint
// of its service, and both after the service's own work, which ends what would
// hold them up.
func TestStopHasOneDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t)
		w.process.Settings.StopTimeout = 3 * StopLeast / 2
		names := []discovery.Service{discovery.Index, discovery.Sequencer, discovery.Gateway}
		endpoints := make([]*stubborn, len(names))
		for i, s := range names {
			endpoints[i] = &stubborn{name: string(s), diary: w.diary}
			p := &part{name: string(s), diary: w.diary}
			w.group.Add(s, p, endpoints[i], "")
			if s == discovery.Gateway {
				w.group.listen(p, func(context.Context) { w.diary.note("http closes") })
			}
		}
		eventually(t, "registered", func() bool { return w.group.Ready() == nil })
		w.diary.mu.Lock()
		w.diary.lines = nil
		w.diary.mu.Unlock()
		w.group.Stop()
		want := []string{
			"n1.gateway leaves", "gateway ends", "http closes", "gateway refuses", "gateway cancels",
			"n1.sequencer leaves", "sequencer ends", "sequencer refuses", "sequencer cancels",
			"n1.index leaves", "index ends", "index refuses", "index cancels",
		}
		if !slices.Equal(w.diary.lines, want) {
			t.Errorf("got  %q\nwant %q", w.diary.lines, want)
		}
		if first := endpoints[2].left; first > 3*StopLeast/2 || first < StopLeast/2 {
			t.Errorf("the first had %v of %v", first, 3*StopLeast/2)
		}
		for _, e := range endpoints[:2] {
			if e.left > StopLeast || e.left < StopLeast/4 {
				t.Errorf("%s had %v although the first used up the time, want about %v", e.name, e.left, StopLeast)
			}
		}
	})
}

// deaf is discovery that does not answer a departure.
type deaf struct {
	*registry
}

func (d deaf) Deregister(ctx context.Context, id string) error {
	d.diary.note("%s wants to leave", id)
	<-ctx.Done()
	return ctx.Err()
}

// A registry that is gone holds a stop up once, not for each service.
func TestStopWithDeadRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t)
		w.process.Settings.StopTimeout = time.Hour
		for _, s := range []discovery.Service{discovery.Index, discovery.Cache, discovery.ChainWriter, discovery.Sequencer, discovery.Settler, discovery.Reaper, discovery.Reader} {
			w.add(t, s)
		}
		eventually(t, "registered", func() bool { return w.group.Ready() == nil })
		w.process.Registry = deaf{w.registry}
		stopped := make(chan struct{})
		began := time.Now()
		go func() {
			defer close(stopped)
			w.group.Stop()
		}()
		select {
		case <-stopped:
			t.Log(time.Since(began).Round(time.Millisecond))
		case <-time.After(30 * time.Second):
			t.Fatal("the stop waits for the registry")
		}
		tries := 0
		for _, l := range w.diary.lines {
			if len(l) > 5 && l[len(l)-5:] == "leave" {
				tries++
			}
		}
		if tries != 7 {
			t.Errorf("%d services tried to leave, want 7", tries)
		}
	})
}
