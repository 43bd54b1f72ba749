package export

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) {
	flag.Parse()
	goleak.VerifyTestMain(m)
}

const testID = "01J00000000000000000000000"

func about() *indexpb.ExportManifest {
	return &indexpb.ExportManifest{ExportId: testID, Number: 7, ConstellationId: "01J0000000000000000000000C", Incarnation: 1, BegunAt: 1000}
}

// rows are one record of every kind.
func rows() []*indexpb.ExportRecord {
	return []*indexpb.ExportRecord{
		{Row: &indexpb.ExportRecord_Constellation{Constellation: &indexpb.Constellation{Id: "01J0000000000000000000000C", ShardCount: 4, WriteVersion: 1}}},
		{Row: &indexpb.ExportRecord_Directory{Directory: &indexpb.Directory{ChainId: "c", From: 64, To: 128, Object: "directory/c/x"}}},
		{Row: &indexpb.ExportRecord_Chain{Chain: &indexpb.Chain{ChainId: "c", SettledTo: 64, AbsorbedTo: 128}}},
		{Row: &indexpb.ExportRecord_Shard{Shard: &indexpb.Shard{Shard: 3, Epoch: 9}}},
		{Row: &indexpb.ExportRecord_Bucket{Bucket: &indexpb.BucketRecord{Name: "bucket"}}},
		{Row: &indexpb.ExportRecord_Descriptor_{Descriptor_: &indexpb.StreamDescriptor{StreamId: "s", Bucket: "bucket", Name: "name"}}},
		{Row: &indexpb.ExportRecord_Head{Head: &indexpb.Head{StreamId: "s", Tail: 12, ContentHash: 0x1234}}},
		{Row: &indexpb.ExportRecord_Name{Name: &indexpb.NameRecord{Bucket: "bucket", Name: "name", StreamId: "s"}}},
		{Row: &indexpb.ExportRecord_Due{Due: &indexpb.Due{DueId: "d", Queue: "delete"}}},
	}
}

// write writes records and returns the manifest.
func write(t testing.TB, objects Objects, records []*indexpb.ExportRecord) *indexpb.ExportManifest {
	t.Helper()
	w := NewWriter(objects, about())
	for _, r := range records {
		if err := w.Add(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	m, err := w.Finish(t.Context(), time.UnixMilli(2000))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// read returns all records of the export there.
func read(ctx context.Context, objects Source) ([]*indexpb.ExportRecord, error) {
	m, err := ReadManifest(ctx, objects, testID)
	if err != nil {
		return nil, err
	}
	var out []*indexpb.ExportRecord
	err = Each(ctx, objects, m, func(r *indexpb.ExportRecord) error {
		out = append(out, r)
		return nil
	})
	return out, err
}

func same(a, b []*indexpb.ExportRecord) bool {
	return slices.EqualFunc(a, b, func(x, y *indexpb.ExportRecord) bool { return proto.Equal(x, y) })
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	objects := mem.New()
	m := write(t, objects, rows())
	if m.GetHeads() != 1 || m.GetChains() != 1 || m.GetDues() != 1 || m.GetCompletedAt() != 2000 || len(m.GetParts()) != 1 {
		t.Errorf("%v", m)
	}
	got, err := read(t.Context(), objects)
	if err != nil || !same(got, rows()) {
		t.Errorf("%v, %v", got, err)
	}
}

// What an export of version 1 looks like does not change.
func TestGolden(t *testing.T) {
	objects := mem.New()
	write(t, objects, rows())
	for _, f := range []struct{ name, key string }{{"manifest-v1.golden", ManifestKey(testID)}, {"part-v1.golden", PartKey(testID, 0)}} {
		name, key := f.name, f.key
		o, err := objects.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", name)
		if *update {
			if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, o.Body, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// How well a part is compressed may change with the library; that it is read may not.
		if name == "manifest-v1.golden" {
			m, err := DecodeManifest(want, testID)
			if err != nil || m.GetNumber() != 7 || m.GetBuckets() != 1 {
				t.Errorf("%v, %v", m, err)
			}
			continue
		}
		var got []*indexpb.ExportRecord
		m, err := DecodeManifest(mustRead(t, "manifest-v1.golden"), testID)
		if err == nil {
			err = DecodePart(want, m.GetParts()[0], func(r *indexpb.ExportRecord) error {
				got = append(got, r)
				return nil
			})
		}
		if err != nil || !same(got, rows()) {
			t.Errorf("%v, %v", got, err)
		}
	}
}

func mustRead(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Each part is within the limit, however many records there are, and none is lost
// between two of them.
func TestManyRecordsMakeManyParts(t *testing.T) {
	objects := mem.New()
	noise := make([]byte, 300_000)
	seed := uint32(1)
	for i := range noise {
		seed = seed*1664525 + 1013904223
		noise[i] = byte('a' + seed>>24%26)
	}
	var all []*indexpb.ExportRecord
	for i := range 120 {
		all = append(all, &indexpb.ExportRecord{Row: &indexpb.ExportRecord_Head{Head: &indexpb.Head{StreamId: fmt.Sprint(i), FencingToken: string(noise)}}})
	}
	m := write(t, objects, all)
	if len(m.GetParts()) != 3 || m.GetHeads() != 120 {
		t.Errorf("%d parts, %d heads", len(m.GetParts()), m.GetHeads())
	}
	for i := range m.GetParts() {
		o, err := objects.Get(t.Context(), PartKey(testID, i))
		if err != nil || len(o.Body) > MaxPartBytes || len(o.Body) != int(m.GetParts()[i].GetSize()) {
			t.Errorf("part %d: %d bytes, %v", i, len(o.Body), err)
		}
	}
	if got, err := read(t.Context(), objects); err != nil || !same(got, all) {
		t.Errorf("%d records, %v", len(got), err)
	}
	if err := NewWriter(objects, about()).Add(t.Context(), &indexpb.ExportRecord{Row: &indexpb.ExportRecord_Head{Head: &indexpb.Head{FencingToken: string(make([]byte, MaxRecordBytes))}}}); err == nil {
		t.Error("a record beyond the limit was taken")
	}
}

// I10: no byte that differs, and no part that is missing, passes for an export.
func TestDamageIsFound(t *testing.T) {
	objects := mem.New()
	write(t, objects, rows())
	for _, key := range []string{PartKey(testID, 0), ManifestKey(testID)} {
		o, err := objects.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		change := func(what string, body []byte) {
			t.Helper()
			if err := objects.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			if body != nil {
				if _, err := objects.PutIfAbsent(t.Context(), key, body); err != nil {
					t.Fatal(err)
				}
			}
			_, err := read(t.Context(), objects)
			if !errors.Is(err, ErrCorrupt) && !(body == nil && errors.Is(err, objectstore.ErrNotFound)) {
				t.Errorf("%s, %s: %v", key, what, err)
			}
		}
		for i := range o.Body {
			b := bytes.Clone(o.Body)
			b[i] ^= 0x40
			change(fmt.Sprint("byte ", i), b)
		}
		for _, n := range []int{0, 4, len(o.Body) / 2, len(o.Body) - 1} {
			change(fmt.Sprint("cut at ", n), o.Body[:n])
		}
		change("longer", append(bytes.Clone(o.Body), 0))
		change("gone", nil)
		if _, err := objects.PutIfAbsent(t.Context(), key, o.Body); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := read(t.Context(), objects); err != nil || !same(got, rows()) {
		t.Errorf("as it was: %v, %v", got, err)
	}
	// One whose counts are not those of its parts was made of two.
	m, err := ReadManifest(t.Context(), objects, testID)
	if err != nil {
		t.Fatal(err)
	}
	m.Heads++
	if err := Each(t.Context(), objects, m, func(*indexpb.ExportRecord) error { return nil }); !errors.Is(err, ErrCorrupt) {
		t.Errorf("other counts: %v", err)
	}
}

// A writer that dies at any call leaves no manifest, or a whole export; and answers
// that are lost, or late, change nothing.
func TestWriterDiesAnywhere(t *testing.T) {
	for n := 1; ; n++ {
		for _, when := range []fault.When{fault.Before, fault.After} {
			inner := mem.New()
			f := fault.New(inner)
			f.KillAt(n, when)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				select {
				case <-f.Killed():
					cancel()
				case <-ctx.Done():
				}
			}()
			w := NewWriter(f, about())
			err := errors.Join()
			for _, r := range rows() {
				err = errors.Join(err, w.Add(ctx, r))
			}
			if err == nil {
				_, err = w.Finish(ctx, time.UnixMilli(2000))
			}
			got, rerr := read(t.Context(), inner)
			if !errors.Is(rerr, objectstore.ErrNotFound) && (rerr != nil || !same(got, rows())) {
				t.Errorf("killed at %d: %v", n, rerr)
			}
			if err == nil {
				cancel()
				if n < 3 || rerr != nil {
					t.Errorf("%d calls, %v", n, rerr)
				}
				return
			}
			cancel()
		}
	}
}

func TestLostRepliesAreNoErrors(t *testing.T) {
	f := fault.New(mem.New())
	f.Script(fault.Rule{Op: fault.PutIfAbsent, Nth: 1, Do: fault.LoseReply})
	f.Script(fault.Rule{Op: fault.PutIfAbsent, Nth: 4, Do: fault.FailBefore})
	write(t, f, rows())
	if got, err := read(t.Context(), f); err != nil || !same(got, rows()) {
		t.Errorf("%v, %v", got, err)
	}
}

// Intact bytes of a later version are told from damage.
func TestLaterVersion(t *testing.T) {
	b, err := EncodeManifest(about())
	if err != nil {
		t.Fatal(err)
	}
	b[4]++
	b = binary.LittleEndian.AppendUint32(b[:len(b)-crcBytes], checksum(b[:len(b)-crcBytes]))
	if _, err := DecodeManifest(b, testID); !errors.Is(err, ErrVersion) || errors.Is(err, ErrCorrupt) {
		t.Errorf("%v", err)
	}
}

func TestKeys(t *testing.T) {
	for key, want := range map[string]int{PartKey(testID, 0): 0, PartKey(testID, 12345678): 12345678, ManifestKey(testID): -1} {
		if id, n, ok := ParseKey(key); !ok || id != testID || n != want {
			t.Errorf("%s: %s, %d, %t", key, id, n, ok)
		}
		if err := objectstore.CheckKey("test", key); err != nil {
			t.Error(err)
		}
	}
	for _, key := range []string{"", "export", "export/" + testID, "export/x/00000000", PartKey(testID, 1) + "0", "export/" + testID + "/1", "chain/" + testID + "/00000000"} {
		if _, _, ok := ParseKey(key); ok {
			t.Errorf("%q is a key", key)
		}
	}
}

func FuzzDecode(f *testing.F) {
	objects := mem.New()
	m := write(f, objects, rows())
	for _, key := range []string{PartKey(testID, 0), ManifestKey(testID)} {
		o, err := objects.Get(f.Context(), key)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(o.Body)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := DecodeManifest(b, testID); err == nil {
			again, err := EncodeManifest(m)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := DecodeManifest(again, testID); err != nil {
				t.Fatal(err)
			}
		}
		part := proto.CloneOf(m.GetParts()[0])
		part.Size, part.Checksum = uint64(len(b)), checksum(b)
		err := DecodePart(b, part, func(*indexpb.ExportRecord) error { return nil })
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
			t.Fatal(err)
		}
	})
}
