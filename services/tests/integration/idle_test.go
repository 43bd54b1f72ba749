//go:build linux

package integration

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// puts reads from /metrics how many objects the program has put, of any kind
// and outcome.
func (p *program) puts(t *testing.T) (n int) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	res, err := client.Get("http://" + p.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	found := false
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if !strings.HasPrefix(name, "nova_objectstore_put") || !strings.Contains(name, "_duration_seconds_count") {
			continue
		}
		v, err := strconv.Atoi(value[strings.LastIndexByte(value, ' ')+1:])
		if err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		found = true
		n += v
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if !found {
		t.Fatal("/metrics has no counts of puts")
	}
	return n
}

// cpu returns how long the program has computed.
func (p *program) cpu(t *testing.T) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	// After the name of the program, in brackets, come state (field 3) and so on;
	// fields 14 and 15 are user and system time in hundredths of a second.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var ticks int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// A node on a directory that nobody uses writes no objects and leaves the
// processor alone, also once it has data, streams and open connections.
func TestIdleProgram(t *testing.T) {
	p := newProgram(t)
	p.start(t)
	c := dial(t, p.address)
	for i := range 20 {
		name := fmt.Sprint("s", i)
		c.create(t, name, nil)
		c.append(t, 0, name, "x")
	}
	sub := c.subscribe(t.Context(), t, &novapb.SubscribeRequest{Stream: "s0"})
	if _, err := sub.Recv(); err != nil {
		t.Fatal(err)
	}
	// What the appends leave to be done has its time first.
	const span = 15 * time.Second
	before := p.puts(t)
	if before == 0 {
		t.Fatal("/metrics counts no puts of the appends")
	}
	eventually(t, 4*span, func() error {
		time.Sleep(span / 2)
		now := p.puts(t)
		defer func() { before = now }()
		if now != before {
			return errors.New("it still puts")
		}
		return nil
	})
	computed := p.cpu(t)
	began := time.Now()
	time.Sleep(span) // the measurement
	computed = p.cpu(t) - computed
	share := 100 * computed.Seconds() / time.Since(began).Seconds()
	t.Logf("idle: %.2f%% of a processor", share)
	if now := p.puts(t); now != before {
		t.Errorf("%d puts while idle", now-before)
	}
	if share > 5 {
		t.Errorf("it takes %.1f%% of a processor while idle", share)
	}
}
