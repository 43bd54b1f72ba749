package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tick is the unit of processor times in /proc: USER_HZ, the same on every Linux.
const tick = 10 * time.Millisecond

// processTime returns the processor time that a process has used.
func processTime(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		tb.Fatal(err)
	}
	// The second field is a name in parentheses; user and system time are the
	// 14th and the 15th.
	f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	return time.Duration(number(tb, f[11])+number(tb, f[12])) * tick
}

// memory returns a line of /proc/<pid>/status, in bytes.
func memory(tb testing.TB, pid int, line string) float64 {
	tb.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(data), "\n"+line+":")
	if !ok {
		tb.Fatalf("/proc/%d/status has no line %s", pid, line)
	}
	return float64(number(tb, strings.Fields(rest)[0])) * 1024
}

func number(tb testing.TB, s string) int64 {
	tb.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// machine watches how busy others keep the processors.
type machine struct {
	tb        testing.TB
	busy, own time.Duration
	total     time.Duration
	nova      int // pid of a running node, 0: none
	others    samples
}

// watch starts a period; nova is a running node that counts as our own.
func (m *machine) watch(nova int) {
	m.nova = nova
	m.busy, m.total = m.processors()
	m.own = m.ours()
}

// end ends it.
func (m *machine) end() {
	busy, total := m.processors()
	if total > m.total {
		others := (busy - m.busy) - (m.ours() - m.own)
		m.others.add(100 * max(float64(others), 0) / float64(total-m.total))
	}
}

// othersShare is the median of all periods, in percent; 0 if they were too short
// to tell.
func (m *machine) othersShare() float64 {
	if len(m.others) == 0 {
		return 0
	}
	return m.others.median()
}

func (m *machine) processors() (busy, total time.Duration) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		m.tb.Fatal(err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	for i, f := range strings.Fields(line)[1:9] { // user nice system idle iowait irq softirq steal
		v := time.Duration(number(m.tb, f)) * tick
		total += v
		if i != 3 && i != 4 {
			busy += v
		}
	}
	return busy, total
}

func (m *machine) ours() time.Duration {
	t := usage(m.tb, syscall.RUSAGE_SELF) + usage(m.tb, syscall.RUSAGE_CHILDREN)
	if m.nova != 0 {
		t += processTime(m.tb, m.nova)
	}
	return t
}

func usage(tb testing.TB, who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
