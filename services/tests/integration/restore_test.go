package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// objectsOf are the keys of a family of objects on disk.
func (p *program) objectsOf(t *testing.T, family string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(p.dir, "objects", "objects", family, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// awaitExports waits for so many more exports, so that the last of two began after
// this call.
func (p *program) awaitExports(t *testing.T, n int) {
	t.Helper()
	const said = "exported the metadata"
	had := strings.Count(string(p.log.from(0)), said)
	eventually(t, readyLimit, func() error {
		if got := strings.Count(string(p.log.from(0)), said) - had; got < n {
			return fmt.Errorf("%d exports of %d", got, n)
		}
		return nil
	})
}

// restore runs the restore, which must end well, and returns what it said.
func (p *program) restore(t *testing.T) string {
	t.Helper()
	cmd := p.command("restore")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("novad restore: %v\n%s", err, out)
	}
	return string(out)
}

// sent is a producer of single batches, and what was acknowledged.
type sent struct {
	stream string
	acks   []*novapb.AppendAck
	bodies []string
}

func (s *sent) request(i int) *novapb.AppendRequest {
	req := request(s.stream, s.bodies[2*i:2*i+2]...)
	req.ProducerId, req.ProducerEpoch, req.BatchSeq = "p", 1, uint64(i)
	return req
}

func (s *sent) more(t *testing.T, c *client, batches int) {
	t.Helper()
	for range batches {
		i := len(s.acks)
		for j := range 2 {
			s.bodies = append(s.bodies, fmt.Sprintf("%s %d.%d %s", s.stream, i, j, strings.Repeat("y", i*97%700)))
		}
		res, err := c.appends.Append(t.Context(), s.request(i))
		if err != nil {
			t.Fatalf("%s batch %d: %v", s.stream, i, err)
		}
		s.acks = append(s.acks, res.GetAck())
	}
}

// The metastore is lost, and comes back from the bucket: with what was settled
// before the export, what was not, what was written after it, and a stream that the
// export does not know (I1, I2, I5).
func TestMetastoreIsLostAndRestored(t *testing.T) {
	p := newProgram(t, "--shards", "4", "--settle-age", "1s", "--export-interval", "1s", "--lease-ttl", "1s")
	p.start(t)
	c := dial(t, p.address)
	var all []*sent
	for i := range 6 {
		s := &sent{stream: fmt.Sprint("s", i)}
		c.create(t, s.stream, nil)
		s.more(t, c, 5)
		all = append(all, s)
	}
	c.create(t, "gone before", nil)
	c.append(t, 0, "gone before", "a")
	c.create(t, "gone after", nil)
	c.append(t, 0, "gone after", "b")
	c.create(t, "never used", &novapb.StreamConfig{RetentionAgeMsPresence: &novapb.StreamConfig_RetentionAgeMs{RetentionAgeMs: 3_600_000}})
	remove := func(name string) {
		t.Helper()
		if _, err := c.streams.DeleteStream(t.Context(), &novapb.DeleteStreamRequest{Bucket: bucket, Stream: name}); err != nil {
			t.Fatal(err)
		}
	}
	remove("gone before")
	eventually(t, readyLimit, func() error {
		if len(p.objectsOf(t, "settled")) == 0 {
			return errors.New("nothing is settled")
		}
		return nil
	})
	all[0].more(t, c, 3)
	p.awaitExports(t, 2)

	// From here on there is no export.
	p.kill()
	p.args = append(p.args, "--export-interval", "1h")
	p.start(t)
	c = dial(t, p.address)
	for i, s := range all[:4] {
		s.more(t, c, 2+i)
	}
	settled := len(p.objectsOf(t, "settled"))
	remove("gone after")
	c.trim(t, "s1", 3)
	id := c.create(t, "made after", nil)
	c.append(t, 0, "made after", "x", "y")
	eventually(t, readyLimit, func() error {
		if len(p.objectsOf(t, "settled")) == settled {
			return errors.New("nothing more is settled")
		}
		return nil
	})
	all[5].more(t, c, 1) // surely not settled

	p.kill()
	if err := os.RemoveAll(filepath.Join(p.dir, "metadata")); err != nil {
		t.Fatal(err)
	}
	if said := lines(t, p.command()); !strings.Contains(said[len(said)-1], "novad restore") {
		t.Fatalf("without metadata it says %q", said)
	}
	t.Log(p.restore(t))
	if said := lines(t, p.command("restore")); !strings.Contains(said[len(said)-1], "nothing was changed") {
		t.Fatalf("a second restore says %q", said)
	}

	p.start(t)
	c = dial(t, p.address)
	for _, s := range all {
		from := 0
		if s.stream == "s1" {
			from = 3
			if got := c.tail(t, "s1").GetFirstSeq(); got != 3 {
				t.Errorf("trimmed to %d, want 3", got)
			}
		}
		c.expect(t, s.stream, uint64(from), s.bodies[from:]...)
		for i, want := range s.acks {
			got, err := c.appends.Append(t.Context(), s.request(i))
			if err != nil || !got.GetAck().GetDuplicate() || got.GetAck().GetFirstSeq() != want.GetFirstSeq() || got.GetAck().GetNextSeq() != want.GetNextSeq() {
				t.Fatalf("%s: batch %d sent again: %v, %v, want %v", s.stream, i, got, err, want)
			}
		}
		next := uint64(len(s.bodies))
		s.more(t, c, 1)
		if got := s.acks[len(s.acks)-1].GetFirstSeq(); got != next {
			t.Fatalf("%s goes on at %d, want %d", s.stream, got, next)
		}
	}
	got, err := c.reads.Read(t.Context(), &novapb.ReadRequest{Bucket: "lost-and-found", Stream: id, Start: &novapb.ReadRequest_Seq{}})
	if err != nil || len(got.GetRecords()) != 2 || string(got.GetRecords()[1].GetBody()) != "y" {
		t.Errorf("the stream made after the export: %v, %v", got, err)
	}
	for _, name := range []string{"gone before", "gone after"} {
		_, err := c.reads.Read(t.Context(), &novapb.ReadRequest{Bucket: bucket, Stream: name, Start: &novapb.ReadRequest_Seq{}})
		wantErr(t, err, codes.NotFound, reason.StreamNotFound)
	}
	c.append(t, 0, "never used", "first")
	c.mustVerify(t)

	// It settles on from there, over all that was settled before and after the export.
	settled = len(p.objectsOf(t, "settled"))
	all[0].more(t, c, 1) // all before it may be settled by now
	eventually(t, readyLimit, func() error {
		if len(p.objectsOf(t, "settled")) == settled {
			return errors.New("nothing more is settled")
		}
		return nil
	})
	for _, s := range all {
		from := 0
		if s.stream == "s1" {
			from = 3
		}
		c.expect(t, s.stream, uint64(from), s.bodies[from:]...)
	}
	c.mustVerify(t)
}
