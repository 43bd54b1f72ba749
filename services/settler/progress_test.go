package settler

import (
	"strings"
	"testing"
	"time"

	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
)

// Progress tells since when a chain waits to be absorbed, and why.
func TestProgressTellsWhatWaits(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		bad, good := w.chain(), w.chain()
		w.commit(bad, 0, 2, 5) // entry numbers begin at 5: a gap
		s := w.start(Config{})
		defer s.stop()
		began := time.Now()
		time.Sleep(20 * time.Second)
		w.commit(good, 0, 2, 0)
		time.Sleep(20 * time.Second)
		res, err := s.GetProgress(t.Context(), &settlerpb.GetProgressRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if at := time.UnixMilli(res.GetSince()); at.Before(began.Add(-time.Second)) || at.After(began.Add(time.Second)) {
			t.Errorf("since %v, it began at %v", at, began)
		}
		for _, p := range res.GetChains() {
			switch p.GetChainId() {
			case bad.String():
				if p.GetBacklog() == 0 || !strings.Contains(p.GetBlocked(), "absorbing fails") {
					t.Errorf("what fails: %v", p)
				}
				if at := time.UnixMilli(p.GetBacklogSince()); at.Before(began.Add(-time.Second)) || at.After(began.Add(10*time.Second)) {
					t.Errorf("it waits since %v, the settler began at %v", at, began)
				}
			case good.String():
				if p.GetBacklog() != 0 || p.GetBacklogSince() != 0 || p.GetBlocked() != "" || p.GetAbsorbedTo() != 2 {
					t.Errorf("what is absorbed: %v", p)
				}
			}
		}
		if len(res.GetChains()) != 2 {
			t.Errorf("%d chains", len(res.GetChains()))
		}
	})
}
