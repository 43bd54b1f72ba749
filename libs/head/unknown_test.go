package head

import (
	"testing"

	"github.com/nova-stream/nova/libs/stream"
)

// Who is not remembered may have stored anything before: only batch 0 is taken (I5).
func TestUnknownProducerBeginsAtBatchZero(t *testing.T) {
	for _, id := range []string{"plain", ulidOf(1000)} {
		var p Producers
		for _, b := range []uint64{1, 2, 17} {
			if got, _, due := p.Check(stream.Producer{ID: id, Batch: b}, 2000); got != Gap || due != 0 {
				t.Errorf("%s, batch %d: verdict %d, batch %d is due; want Gap and 0", id, b, got, due)
			}
		}
		if got, _, _ := p.Check(stream.Producer{ID: id}, 2000); got != Accept {
			t.Errorf("%s, batch 0: verdict %d", id, got)
		}
		store(&p, stream.Producer{ID: id}, 0, 2000)
		// A higher epoch begins anew.
		if got, _, _ := p.Check(stream.Producer{ID: id, Epoch: 1, Batch: 1}, 2000); got != Gap {
			t.Errorf("%s, batch 1 of a new epoch: verdict %d, want Gap", id, got)
		}
	}
}

// A batch that is remembered is answered with what it was, each of the last ones (I5).
func TestRememberedBatchIsADuplicate(t *testing.T) {
	var p Producers
	var stored []Batch
	for i := range uint64(2 * MaxBatches) {
		stored = append(stored, store(&p, stream.Producer{ID: "p", Batch: i}, stream.Seq(i), 1))
	}
	for i, b := range stored {
		want := Duplicate
		if i < MaxBatches {
			want = Lost // too old to say where it is, and never stored again
		}
		if got, dup, _ := p.Check(stream.Producer{ID: "p", Batch: b.Seq}, 2); got != want || want == Duplicate && dup != b {
			t.Errorf("batch %d: verdict %d, %+v; want %d, %+v", b.Seq, got, dup, want, b)
		}
	}
}
