package integration

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/novad"
)

// verifyAnd verifies, with repair if so asked, and returns what was found.
func (c *client) verifyAnd(t *testing.T, req *novapb.VerifyRequest) ([]*novapb.VerifyFinding, error) {
	t.Helper()
	call, err := c.admin.Verify(t.Context(), req)
	if err != nil {
		return nil, err
	}
	var found []*novapb.VerifyFinding
	for {
		m, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return found, err
		}
		found = append(found, m.GetFindings()...)
	}
}

// I2, I11: a stream whose slot was damaged is quarantined, and says why it cannot be
// repaired; when the slot is put back, it is repaired beside all that runs, with every
// record. A slot that came back after it was reclaimed is deleted again.
func TestRepairOfARunningNode(t *testing.T) {
	st := newStorage()
	d := startSingle(t, func(t *testing.T) *novad.Node {
		// A slot is damaged before it is settled, also on a busy machine.
		cfg := st.config(t, "--settle-age", "3s", "--read-grace", "1s")
		cfg.Settler.Interval = 100 * time.Millisecond
		return startNode(t, cfg)
	})
	c := dial(t, d.address())
	slots := func() map[string]bool {
		list, err := st.objects.List(t.Context(), "chain/", "", 1000)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]bool{}
		for _, o := range list {
			out[o.Key] = true
		}
		return out
	}
	// append returns the slot that it made.
	write := func(from uint64, name string, records ...string) string {
		before := slots()
		c.append(t, from, name, records...)
		for key := range slots() {
			if !before[key] {
				return key
			}
		}
		t.Fatal("no new slot")
		return ""
	}
	object := func(key string) objectstore.Object {
		o, err := st.objects.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	c.create(t, "bad", nil)
	c.create(t, "good", nil)
	records := []string{"one", strings.Repeat("two", 100), "three"}
	hit := write(0, "bad", records[0], records[1])
	intact := object(hit)
	broken := flipped(intact.Body, strings.Index(string(intact.Body), "two"))
	if _, err := st.objects.PutIfMatch(t.Context(), hit, broken, intact.ETag); err != nil {
		t.Fatal(err)
	}
	c.append(t, 2, "bad", records[2])
	late := write(0, "good", "good")
	lateBytes := object(late).Body
	// It is found by settling, and the leader learns of it when the stream is at rest.
	eventually(t, readyLimit, func() error {
		if _, err := c.verifyAnd(t, &novapb.VerifyRequest{Bucket: bucket, Stream: "bad"}); !reason.Is(err, reason.StreamQuarantine) {
			return fmt.Errorf("not quarantined: %w", err)
		}
		return nil
	})
	repair := &novapb.VerifyRequest{Bucket: bucket, Stream: "bad", Repair: true}
	found, err := c.verifyAnd(t, repair)
	if err != nil || len(found) != 1 || found[0].GetRepaired() || !strings.Contains(found[0].GetRepair(), "slot") {
		t.Fatalf("damaged still: %v, %v", found, err)
	}
	now := object(hit)
	if _, err := st.objects.PutIfMatch(t.Context(), hit, intact.Body, now.ETag); err != nil {
		t.Fatal(err)
	}
	found, err = c.verifyAnd(t, repair)
	if err != nil || len(found) != 1 || !found[0].GetRepaired() || found[0].GetKind() != "quarantined" {
		t.Fatalf("put back: %v, %v", found, err)
	}
	c.expect(t, "bad", 0, records...)
	c.append(t, 3, "bad", "four")
	if found, err = c.verifyAnd(t, repair); err != nil || len(found) > 0 {
		t.Errorf("again: %v, %v", found, err)
	}
	// The slots go, the pinned one too.
	eventually(t, readyLimit, func() error {
		if now := slots(); now[hit] || now[late] {
			return errors.New("the slots are not reclaimed")
		}
		return nil
	})
	if _, err := st.objects.PutIfAbsent(t.Context(), late, lateBytes); err != nil {
		t.Fatal(err)
	}
	all := &novapb.VerifyRequest{All: true, Repair: true}
	eventually(t, readyLimit, func() error {
		found, err := c.verifyAnd(t, all)
		if err != nil {
			return err
		}
		for _, f := range found {
			if f.GetKind() != "leak" || !f.GetRepaired() {
				t.Errorf("found %v", f)
			}
		}
		if len(found) == 0 && !slots()[late] {
			return nil
		}
		return fmt.Errorf("%d findings, the slot is there: %v", len(found), slots()[late])
	})
}
