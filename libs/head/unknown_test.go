package head

import (
	"testing"

	"github.com/nova-stream/nova/libs/stream"
)

// Who is not remembered may have stored anything before: only batch 0 is taken (I5).
func TestUnknownProducerBeginsAtBatchZero(t *testing.T) {
	for _, id := range []string{"plain", born(1000)} {
		var p Producers
		for _, b := range []uint64{1, 2, 17} {
			if got, _, due := p.Check(stream.Producer{ID: id, Batch: b}, 2000); got != Gap || due != 0 {
				t.Errorf("%s, batch %d: verdict %d, batch %d is due; want Gap and 0", id, b, got, due)
			}
		}
		if got, _, _ := p.Check(stream.Producer{ID: id}, 2000); got != Accept {
			t.Errorf("%s, batch 0: verdict %d", id, got)
		}
		store(&p, stream.Producer{ID: id}, 0, 1)
		// A higher epoch begins anew.
		if got, _, _ := p.Check(stream.Producer{ID: id, Epoch: 1, Batch: 1}, 2000); got != Gap {
			t.Errorf("%s, batch 1 of a new epoch: verdict %d, want Gap", id, got)
		}
	}
}
