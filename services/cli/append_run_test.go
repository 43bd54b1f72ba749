package cli

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// pieces returns a reader that has a drawn number of bytes at a time.
func pieces(t *rapid.T, in io.Reader) io.Reader {
	most := rapid.SampledFrom([]int{1 << 10, 100 << 10, 1 << 20}).Draw(t, "at a time")
	return readerFunc(func(b []byte) (int, error) { return in.Read(b[:min(len(b), most)]) })
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// A run's memory is used again, but never before all of it is acknowledged: what is
// under way may be sent again, and has to be what was read (I2).
func TestRunsKeepWhatIsUnderWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var lines []string
		var text bytes.Buffer
		for range rapid.IntRange(1, 4).Draw(t, "blocks") {
			size := rapid.SampledFrom([]int{0, 1, 7, 50, 300, 5000, runBytes - 1, runBytes, runBytes + 1, 300 << 10}).Draw(t, "size")
			for range rapid.IntRange(1, min(2500, 1+(1<<18)/(size+1))).Draw(t, "lines") {
				l := strings.Repeat(string(rune('a'+len(lines)%26)), size)
				lines = append(lines, l)
				text.WriteString(l + "\n")
			}
		}
		type sent struct {
			records []*novapb.AppendRecord
			lines   []string
		}
		f := &runs{}
		var underWay []sent
		acknowledge := func() {
			s := underWay[0]
			underWay = underWay[1:]
			for i, r := range s.records {
				if string(r.GetBody()) != s.lines[i] {
					t.Fatalf("a line of %d bytes has changed before it was acknowledged", len(s.lines[i]))
				}
			}
			f.acknowledged(nil)
		}
		read, used := 0, map[*run]bool{}
		err := f.readSource(newSource("", formatLines, pieces(t, &text)), func(in input) bool {
			r := in.run
			used[r] = true
			if len(r.records) > stream.MaxBatchRecords {
				t.Fatalf("a run of %d records", len(r.records))
			}
			for rest := r.records; len(rest) > 0; {
				n := rapid.IntRange(1, len(rest)).Draw(t, "batch")
				f.sending([]part{{run: r, records: n}})
				underWay = append(underWay, sent{slices.Clone(rest[:n]), lines[read : read+n]})
				rest, read = rest[n:], read+n
				for len(underWay) > 8 {
					acknowledge()
				}
			}
			return true
		})
		for len(underWay) > 0 {
			acknowledge()
		}
		if err != nil || read != len(lines) {
			t.Fatalf("%d of %d lines were read: %v", read, len(lines), err)
		}
		if len(used) > 10 {
			t.Fatalf("%d runs for 8 batches under way", len(used))
		}
	})
}
