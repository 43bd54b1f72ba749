package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func TestUsageErrors(t *testing.T) {
	w := begin(t)
	conf := file(t, "bad.yaml", "adr: x\n")
	for _, args := range []string{
		"frobnicate", "bucket", "bucket frobnicate", "bucket create", "bucket create a b", "bucket get", "stream create nobucket", "stream create /x", "stream create b/",
		"append", "append nobucket", "append tests/log --format xml", "append tests/log --batch 0", "append tests/log --batch 1001", "append tests/log --batch x",
		"append tests/log --match-seq -1", "append tests/log --match-seq x", "append tests/log --producer-epoch 1", "append tests/log --patience 1y", "append tests/log --patience 0s",
		"append tests/log --nonsense", "read", "read tests/log x", "read tests/log --from-seq x", "read tests/log --from-time yesterday", "read tests/log --until never",
		"read tests/log --from-seq 1 --tail 1", "read tests/log --count -1", "tail tests/log -n x", "trim tests/log", "trim tests/log x", "fence tests/log",
		"fence tests/log " + strings.Repeat("x", 65), "verify", "verify tests/", "verify /log", "verify tests/log --all", "node stats", "fleet x", "token mint --ttl x",
		"stream create tests/x --profile fast", "stream create tests/x --timestamping never", "stream create tests/x --retention-age 1y", "bucket list -o xml",
		"bucket list --config /does/not/exist", "bucket list --config " + conf, "bucket list --ca /does/not/exist",
	} {
		r := w.run(t, "", strings.Fields(args)...)
		if r.code != 2 || r.out != "" || !strings.HasPrefix(r.err, "nova: ") || !strings.HasSuffix(r.err, "See nova --help.\n") {
			t.Errorf("nova %s: %+v", args, r)
		}
	}
	w.environ = append(w.environ, "NOVA_BATCH=0")
	if r := w.run(t, "", "append", "tests/log"); r.code != 2 {
		t.Errorf("a wrong environment twin: %+v", r)
	}
	w.must(t, "", "bucket", "list") // has no --batch
}

func TestSettingsComeFromFlagsEnvironmentAndFile(t *testing.T) {
	w := begin(t)
	w.Store("tests", "log", "0", "1", "2", "3")
	conf := file(t, "nova.yaml", "count: 1\noutput: json\nformat: lines\ntoken: 0123\nprefix: [lo]\n")
	w.environ = append(w.environ, "NOVA_CONFIG="+conf, "NOVA_UNKNOWN=x")
	if got := w.must(t, "", "read", "tests/log"); got != "0\n" || w.Authorization != "Bearer 0123" {
		t.Errorf("file: %q, %q", got, w.Authorization)
	}
	if got := w.must(t, "", "stream", "list", "tests"); !strings.HasPrefix(got, "{") || strings.Count(got, "\n") != 1 {
		t.Errorf("file: %q", got)
	}
	w.environ = append(w.environ, "NOVA_COUNT=2")
	if got := w.must(t, "", "read", "tests/log"); got != "0\n1\n" {
		t.Errorf("environment: %q", got)
	}
	if got := w.must(t, "", "read", "tests/log", "--count", "3"); got != "0\n1\n2\n" {
		t.Errorf("flag: %q", got)
	}
	got := w.must(t, "", "print-config")
	if !strings.Contains(got, "addr: "+w.address) || !strings.Contains(got, "output: json") || !strings.Contains(got, "token: (set)") || strings.Contains(got, "0123") {
		t.Errorf("print-config: %q", got)
	}
}

func TestHelpVersionCompletion(t *testing.T) {
	w := begin(t)
	if got := w.must(t, "", "--version"); got != "nova "+config.Version+"\n" {
		t.Error(got)
	}
	for _, args := range []string{"", "--help", "help append", "append --help", "bucket create --help"} {
		if got := w.must(t, "", strings.Fields(args)...); !strings.Contains(got, "--addr") {
			t.Errorf("nova %s: %q", args, got)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if got := w.must(t, "", "completion", shell); !strings.Contains(got, "nova") {
			t.Errorf("completion %s: %q", shell, got)
		}
	}
}

func TestUnreachableServerIsSaid(t *testing.T) {
	w := begin(t)
	const nobody = "127.0.0.1:1"
	r := w.run(t, "", "bucket", "list", "--addr", nobody)
	if r.code != 1 || !strings.Contains(r.err, "cannot reach "+nobody) || !strings.Contains(r.err, "refused") || strings.Contains(r.err, "rpc error") {
		t.Errorf("%+v", r)
	}
	r = w.run(t, "x\n", "append", "tests/log", "--addr", nobody, "--patience", "50ms")
	if r.code != 1 || r.out != "appended 0 records\n" || !strings.Contains(r.err, "cannot reach "+nobody) || strings.Contains(r.err, "unknown whether") {
		t.Errorf("%+v", r)
	}
}

func TestBucketsAndStreams(t *testing.T) {
	w := begin(t)
	out := w.must(t, "", "bucket", "create", "logs", "--create-stream-on-append", "--retention-age", "7d", "-o", "json")
	var b struct {
		Name   string
		Config struct {
			CreateStreamOnAppend bool `json:"create_stream_on_append"`
			DefaultStreamConfig  struct {
				RetentionAge int64 `json:"retention_age_ms"`
			} `json:"default_stream_config"`
		}
	}
	if err := json.Unmarshal([]byte(out), &b); err != nil || b.Name != "logs" || !b.Config.CreateStreamOnAppend || b.Config.DefaultStreamConfig.RetentionAge != (7*24*time.Hour).Milliseconds() {
		t.Errorf("%s, %v", out, err)
	}
	if out := w.must(t, "", "bucket", "list"); !strings.Contains(out, "logs    active") || !strings.Contains(out, "tests   active") {
		t.Error(out)
	}
	w.must(t, "", "bucket", "get", "logs")
	w.must(t, "", "bucket", "update", "logs", "--create-stream-on-read")
	out = w.must(t, "", "stream", "create", "logs/a", "--retention-bytes", "100", "--timestamping", "arrival", "--delete-on-empty", "1h")
	for _, want := range []string{"logs/a", "arrival", "100", "after 1h"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	w.must(t, "x\ny\n", "append", "logs/a")
	out = w.must(t, "", "stream", "get", "logs/a", "-o", "json")
	var s struct{ Extent struct{ Tail *uint64 } }
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.Extent.Tail == nil || *s.Extent.Tail != 2 {
		t.Errorf("%s, %v", out, err)
	}
	w.must(t, "", "stream", "update", "logs/a", "--retention-bytes", "0")
	if out := w.must(t, "", "check-tail", "logs/a"); !strings.Contains(out, "tail            2\n") || !strings.Contains(out, "sealed          false\n") {
		t.Error(out)
	}
	if out := w.must(t, "", "trim", "logs/a", "1"); out != "first seq 1, tail 2\n" {
		t.Error(out)
	}
	if out := w.must(t, "", "fence", "logs/a", "mine"); out != "in force from 2 on\n" {
		t.Error(out)
	}
	if r := w.run(t, "z\n", "append", "logs/a", "--fencing-token", ""); r.code != 1 || !strings.Contains(r.err, "FENCED") {
		t.Errorf("%+v", r)
	}
	w.must(t, "z\n", "append", "logs/a", "--fencing-token", "mine")
	if out := w.must(t, "", "fence", "logs/a", ""); out != "cleared from 3 on\n" {
		t.Error(out)
	}
	if out := w.must(t, "", "stream", "seal", "logs/a"); out != "sealed at 3\n" {
		t.Error(out)
	}
	if r := w.run(t, "", "bucket", "delete", "logs"); r.code != 1 || !strings.Contains(r.err, "BUCKET_NOT_EMPTY") {
		t.Errorf("%+v", r)
	}
	w.must(t, "", "bucket", "delete", "logs", "--force")
	if r := w.run(t, "", "stream", "delete", "logs/a"); r.code != 1 || !strings.Contains(r.err, "BUCKET_NOT_FOUND") {
		t.Errorf("%+v", r)
	}
	if out := w.must(t, "", "stream", "delete", "tests/log"); out != "deleted stream tests/log\n" {
		t.Error(out)
	}
}

// Lists have no end of their own: they are shown page by page.
func TestLongLists(t *testing.T) {
	w := begin(t)
	const many = 2300
	var want []string
	for i := range many {
		w.Create("big", fmt.Sprintf("s%05d", i))
		want = append(want, fmt.Sprintf("s%05d", i))
	}
	for _, c := range []struct {
		args string
		want []string
	}{{"", want}, {"--limit 1500", want[:1500]}, {"--limit 1", want[:1]}, {"--prefix s01", want[1000:2000]}, {"--start-after s02298", want[2299:]}, {"--prefix zz", nil}} {
		out := w.must(t, "", append([]string{"stream", "list", "big", "-o", "json"}, strings.Fields(c.args)...)...)
		var got []string
		for dec := json.NewDecoder(strings.NewReader(out)); dec.More(); {
			var s struct{ Name string }
			if err := dec.Decode(&s); err != nil {
				t.Fatal(err)
			}
			got = append(got, s.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("list %s: %d names", c.args, len(got))
		}
	}
	if out := w.must(t, "", "stream", "list", "big", "--prefix", "zz"); strings.Count(out, "\n") != 1 {
		t.Errorf("an empty list: %q", out)
	}
}

func TestOperations(t *testing.T) {
	w := begin(t)
	if out := w.must(t, "", "fleet"); !strings.Contains(out, "16 shards") || !strings.Contains(out, "sequencer  n1    127.0.0.1:1") {
		t.Error(out)
	}
	if out := w.must(t, "", "node", "stats", "n1"); out != "nova.sequencer.pool     0.5\nnova.sequencer.streams  3\n" {
		t.Errorf("%q", out)
	}
	if out := w.must(t, "", "node", "stats", "n1", "-o", "json"); out != `{"nova.sequencer.pool":0.5,"nova.sequencer.streams":3}`+"\n" {
		t.Errorf("%q", out)
	}
	if out := w.must(t, "", "shard", "list"); !strings.Contains(out, "serving") {
		t.Error(out)
	}
	if out := w.must(t, "", "chain", "list"); !strings.Contains(out, "open") {
		t.Error(out)
	}
	w.Store("tests", "log", "x")
	if out := w.must(t, "", "verify", "tests/log"); out != "tests/log: 1 records, 0 bytes checked\n" {
		t.Errorf("%q", out)
	}
	const nothing = "constellation: 0 chains, 0 objects checked\n0 streams, 0 records (0 settled), 0 bytes, 0 chains, 0 objects checked: 0 findings\n"
	if out := w.must(t, "", "verify", "--all"); out != nothing {
		t.Errorf("%q", out)
	}
	w.Findings = []*novapb.VerifyFinding{{Kind: "leak", Message: "settled/1 has no row"}}
	if r := w.run(t, "", "verify", "--all"); r.code != 1 || !strings.Contains(r.out, "constellation: leak: settled/1 has no row\n") || !strings.HasSuffix(r.out, ": 1 findings\n") {
		t.Errorf("%+v", r)
	}
	if r := w.run(t, "", "verify", "--all", "-o", "json"); r.code != 1 || !strings.Contains(r.out, `"findings":1`) {
		t.Errorf("%+v", r)
	}
	w.Findings = []*novapb.VerifyFinding{{Kind: "gap", Message: "records 3..5 are missing", FirstSeq: 3, NextSeq: 6}}
	if r := w.run(t, "", "verify", "tests/log"); r.code != 1 || !strings.Contains(r.out, "tests/log: gap: records 3..5 are missing") {
		t.Errorf("%+v", r)
	}
	if r := w.run(t, "", "verify", "tests/log", "-o", "json"); r.code != 1 || !strings.Contains(r.out, `"first_seq":3`) {
		t.Errorf("%+v", r)
	}
}
