package integration

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// slots are the files of the slots there are, by path.
func (p *program) slots(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(p.dir, "objects", "objects", "chain"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found[path] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// slotOf returns the file of the slot that do makes.
func (p *program) slotOf(t *testing.T, do func()) string {
	t.Helper()
	before := p.slots(t)
	do()
	var made []string
	for path := range p.slots(t) {
		if !before[path] {
			made = append(made, path)
		}
	}
	if len(made) != 1 {
		t.Fatalf("%d new slots, want one: %q", len(made), made)
	}
	return made[0]
}

// damage is what a disk does to a file.
type damage struct {
	name string
	do   func(b []byte) []byte
	// records: those in the file are hit. Else only what is around them, which
	// nobody needs once the slot is absorbed, and is told by the entries before.
	records bool
	// early: the slot is not absorbed when it happens.
	early bool
}

var damages = []damage{
	{name: "bit of the records", do: func(b []byte) []byte { return flipped(b, len(b)/2) }, records: true},
	{name: "bit of the records, early", do: func(b []byte) []byte { return flipped(b, len(b)/2) }, records: true, early: true},
	{name: "bit of the start", do: func(b []byte) []byte { return flipped(b, 9) }},
	{name: "bit of the end", do: func(b []byte) []byte { return flipped(b, len(b)-9) }},
	{name: "bit of the start, early", do: func(b []byte) []byte { return flipped(b, 9) }, early: true},
	{name: "bit of the end, early", do: func(b []byte) []byte { return flipped(b, len(b)-9) }, early: true},
	{name: "start and end, early", do: func(b []byte) []byte { return flipped(flipped(b, 30), len(b)-30) }, early: true},
	{name: "the last bytes are gone, early", do: func(b []byte) []byte { return b[:len(b)-20] }, early: true},
	{name: "half is gone", do: func(b []byte) []byte { return b[:len(b)/2] }, records: true},
	{name: "all is gone", do: func([]byte) []byte { return nil }, records: true},
	{name: "zeros", do: func(b []byte) []byte { return make([]byte, len(b)) }, records: true},
}

func flipped(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 0x20
	return b
}

// verify runs the client's verify over everything; it returns its exit code.
func (p *program) verify(t *testing.T) (int, string) {
	t.Helper()
	nova, err := novaBinary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(within(t, 2*time.Minute), nova, "--addr", p.address, "verify", "--all")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// A slot that the disk damages, while the node is up or down: its records are
// DATA_LOSS, never data and never absent (I10); the caller is told no name of
// what is inside. Later records of the stream, and all of other streams, are read
// and appended as ever, and verification finds the damage (I2).
func TestDamagedOnDisk(t *testing.T) {
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			p := newProgram(t)
			var c *client
			live := func() {
				t.Helper()
				p.kill()
				p.start(t)
				c = dial(t, p.address)
			}
			live()
			c.create(t, "hurt", nil)
			c.create(t, "well", nil)
			c.append(t, 0, "well", "w")
			c.append(t, 0, "hurt", "before")
			const lost = "some bytes that will be damaged in a moment"
			slot := p.slotOf(t, func() { c.append(t, 1, "hurt", lost) })
			c.append(t, 2, "hurt", "after")
			whole, err := os.ReadFile(slot)
			if err != nil {
				t.Fatal(err)
			}
			write := func(b []byte) {
				t.Helper()
				if err := os.WriteFile(slot, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			// The next life has nothing in memory, and absorbs what this one wrote.
			if !d.early {
				live()
				write(d.do(whole))
			} else {
				p.kill()
				write(d.do(whole))
				live()
			}
			// On a busy machine the settler may meet the damage before the test is
			// through: then the stream is quarantined, which is DATA_LOSS too.
			quarantined := func(err error) bool { return d.records && reason.Is(err, reason.StreamQuarantine) }
			found := func(when string) {
				t.Helper()
				if code, said := p.verify(t); code != 1 || !strings.Contains(said, bucket+"/hurt: ") {
					t.Errorf("%s: verify ends with code %d and says %s", when, code, said)
				}
			}
			hurt, well := uint64(3), uint64(1)
			for _, when := range []string{"first", "after a restart"} {
				c.append(t, well, "well", "w")
				well++
				c.expect(t, "well", 0, slices.Repeat([]string{"w"}, int(well))...)
				res, err := c.reads.Read(within(t, 60*time.Second), &novapb.ReadRequest{Bucket: bucket, Stream: "hurt", Start: &novapb.ReadRequest_Seq{Seq: 1}, CountPresence: &novapb.ReadRequest_Count{Count: uint64(1)}})
				if quarantined(err) {
					found(when)
					return
				}
				if d.records {
					wantErr(t, err, codes.DataLoss, reason.ChecksumMismatch)
					if said := err.Error(); strings.Contains(said, "chain") || strings.Contains(said, p.dir) || strings.Contains(said, filepath.Base(slot)) {
						t.Errorf("the caller is told %q", said)
					}
				} else if err != nil || string(res.GetRecords()[0].GetBody()) != lost {
					t.Errorf("%s: %v, %v", when, res, err)
				}
				if err := c.appendErr(t.Context(), request("hurt", "more")); quarantined(err) {
					found(when)
					return
				} else if err != nil {
					t.Fatal(err)
				}
				hurt++
				got, err := c.readAll(t.Context(), "hurt", 2)
				if quarantined(err) {
					found(when)
					return
				}
				if want := append([]string{"after"}, slices.Repeat([]string{"more"}, int(hurt-3))...); err != nil || len(got) != len(want) {
					t.Fatalf("%s: %d records behind the damage, want %q: %v", when, len(got), want, err)
				}
				if d.records {
					found(when)
				}
				live()
			}
			write(whole)
			if _, err := c.readAll(t.Context(), "hurt", 0); quarantined(err) {
				found("mended")
				return
			}
			c.expect(t, "hurt", 0, "before", lost, "after", "more", "more")
			if code, said := p.verify(t); code != 0 {
				t.Errorf("mended: verify ends with code %d and says %s", code, said)
			}
		})
	}
}

// The last slot of a life that was killed, damaged beyond what can be told from
// the rest of it: an acknowledged record is in there that nobody knows of. Until
// the file is back its number is given to no other record, and no read ends
// before it (I1, I2); then everything goes on, without a restart.
func TestUnreadableLastSlot(t *testing.T) {
	for _, d := range []damage{
		{name: "half is gone", do: func(b []byte) []byte { return b[:len(b)/2] }},
		{name: "all is gone", do: func([]byte) []byte { return nil }},
		{name: "zeros", do: func(b []byte) []byte { return make([]byte, len(b)) }},
		{name: "records and end", do: func(b []byte) []byte { return flipped(flipped(b, len(b)/3), len(b)-9) }},
	} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			p := newProgram(t)
			p.start(t)
			c := dial(t, p.address)
			c.create(t, "s", nil)
			c.append(t, 0, "s", "before")
			slot := p.slotOf(t, func() { c.append(t, 1, "s", "the last one") })
			p.kill()
			whole, err := os.ReadFile(slot)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(slot, d.do(whole), 0o600); err != nil {
				t.Fatal(err)
			}
			p.launch(t)
			c = clientOf(connect(t, p.address))
			again := request("s", "another")
			again.SetMatchSeq(1)
			for range 2 {
				if err := c.appendErr(within(t, 2*time.Second), again); err == nil || reason.Is(err, reason.StreamNotFound) {
					t.Fatalf("number 1 was given again: %v", err)
				}
				if got, err := c.readAll(within(t, 2*time.Second), "s", 0); err == nil {
					t.Fatalf("a read ends after %d records", len(got))
				}
			}
			if err := os.WriteFile(slot, whole, 0o600); err != nil {
				t.Fatal(err)
			}
			eventually(t, time.Minute, func() error { return serving(t.Context(), c.conn) })
			c.append(t, 2, "s", "after")
			c.expect(t, "s", 0, "before", "the last one", "after")
		})
	}
}
