package bench

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// lineCount lines of about 50 bytes are appended by one run of nova.
const lineCount = 200_000

// text returns n lines as a log has them.
func text(n int) []byte {
	var b bytes.Buffer
	noise := random(4 * n)
	for i := range n {
		v := noise[4*i:]
		fmt.Fprintf(&b, "%07d GET /v1/items/%05d/%02x 200 %3dms peer-%02d\n", i, int(v[0])<<8|int(v[1]), v[2], v[3], v[1]%64)
	}
	return b.Bytes()
}

// noise returns n lines that do not compress well.
func noise(n int) []byte {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	b := random(n * 50)
	for i := range b {
		if b[i] = alphabet[b[i]%64]; i%50 == 49 {
			b[i] = '\n'
		}
	}
	return b
}

// BenchmarkAppendLinesDir: how long `nova append` takes for 200 000 lines to
// `novad --dir`, against writing the same flights to one file, each synced.
func BenchmarkAppendLinesDir(b *testing.B) {
	for name, lines := range map[string]func(int) []byte{"text": text, "random": noise} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				report(b, appendLinesDir(b, processes{}, lines(lineCount), 9))
			}
		})
	}
}

func appendLinesDir(tb testing.TB, l launcher, input []byte, rounds int) map[string]float64 {
	var took against
	var flights, size, cpu samples
	m := machine{tb: tb}
	for range rounds {
		dir := tb.TempDir()
		n := l.node(tb, "--dir", dir)
		l.nova(tb, n.address, strings.NewReader("first\n"), "append", "bench/lines", "--create")
		before := flightFiles(tb, dir)
		m.watch(n.pid)
		took.nova.add(appendLines(tb, l, n, input, &cpu))
		written := flightFiles(tb, dir)
		maps.DeleteFunc(written, func(name string, _ int64) bool { _, old := before[name]; return old })
		sizes := make([]int64, 0, len(written))
		total := 0.0
		for _, name := range slices.Sorted(maps.Keys(written)) {
			sizes = append(sizes, written[name])
			total += float64(written[name])
		}
		took.raw.add(writeSynced(tb, filepath.Join(dir, "raw"), sizes))
		m.end()
		n.stop()
		flights.add(float64(len(sizes)))
		size.add(total)
		if err := os.RemoveAll(dir); err != nil {
			tb.Fatal(err)
		}
	}
	lines := float64(bytes.Count(input, []byte("\n")))
	return map[string]float64{
		"x-raw": took.ratio(), "x-raw-best": took.best(), "nova-ms": took.nova.milliseconds(.5), "raw-ms": took.raw.milliseconds(.5), "cpu-ms": cpu.milliseconds(.5),
		"records/s": lines / took.nova.median(), "flights": flights.median(), "flight-KiB": size.median() / flights.median() / 1024, "others-%": m.othersShare(),
	}
}

// appendLines runs nova append and returns the seconds from its start to its end.
// cpu gets the processor time of client and server.
func appendLines(tb testing.TB, l launcher, n *node, input []byte, cpu *samples) float64 {
	spent := func() time.Duration {
		m := machine{tb: tb, nova: n.pid}
		return m.ours()
	}
	before, begun := spent(), time.Now()
	l.nova(tb, n.address, bytes.NewReader(input), "append", "bench/lines")
	took := time.Since(begun)
	cpu.addTime(spent() - before)
	return took.Seconds()
}

// flightFiles returns the slots' objects below a data directory, and their sizes.
func flightFiles(tb testing.TB, dir string) map[string]int64 {
	found := map[string]int64{}
	err := filepath.WalkDir(filepath.Join(dir, "objects"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(path, "/"+slots) {
			return err
		}
		info, err := d.Info()
		if err == nil {
			found[path] = info.Size()
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return found
}

// writeSynced writes to one file, synced after each size, and returns the seconds.
func writeSynced(tb testing.TB, name string, sizes []int64) float64 {
	body := random(int(slices.Max(append(sizes, 1))))
	begun := time.Now()
	f, err := os.Create(name)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	for _, n := range sizes {
		if _, err := f.Write(body[:n]); err != nil {
			tb.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			tb.Fatal(err)
		}
	}
	return time.Since(begun).Seconds()
}

// BenchmarkAppendLinesDev: records per second of `nova append` to `novad --dev`,
// the whole program from its start to its end.
func BenchmarkAppendLinesDev(b *testing.B) {
	for b.Loop() {
		report(b, appendLinesDev(b, processes{}, text(lineCount), 5))
	}
}

func appendLinesDev(tb testing.TB, l launcher, input []byte, rounds int) map[string]float64 {
	var rate, cpu samples
	m := machine{tb: tb}
	n := l.node(tb, "--dev")
	l.nova(tb, n.address, strings.NewReader("first\n"), "append", "bench/lines", "--create")
	lines := float64(bytes.Count(input, []byte("\n")))
	for range rounds {
		m.watch(n.pid)
		rate.add(lines / appendLines(tb, l, n, input, &cpu))
		m.end()
	}
	n.stop()
	return map[string]float64{
		"records/s": rate.median(), "best-records/s": rate.quantile(1), "cpu-ms": cpu.milliseconds(.5),
		"records/cpu-s": lines / cpu.median(), "others-%": m.othersShare(),
	}
}
