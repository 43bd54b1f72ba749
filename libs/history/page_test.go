package history

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

var update = flag.Bool("update", false, "write the golden files")

func sampleBody() *indexpb.RefPageBody {
	from := &refs{next: 40, at: 1700000000000}
	return &indexpb.RefPageBody{StreamId: testStream.String(), Level: 1, Refs: []*indexpb.Ref{from.ref(10, 10), from.ref(1, 0)}}
}

func TestGoldenPage(t *testing.T) {
	b := EncodePage(sampleBody())
	path := filepath.Join("testdata", "page-v1.golden")
	if *update {
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, want) {
		t.Errorf("encoded\n% x\nwant\n% x", b, want)
	}
	if got, err := DecodePage(want, testStream); err != nil || !proto.Equal(got, sampleBody()) {
		t.Errorf("%v, %v", got, err)
	}
}

// reseal gives a changed page a good checksum again.
func reseal(b []byte, id stream.ID) []byte {
	end := len(b) - crcBytes
	binary.LittleEndian.PutUint32(b[end:], pageCRC(id, b[:end]))
	return b
}

// I10: no flipped bit, no lost byte and no other stream's page is ever taken for
// data.
func TestDamagedPagesAreDetected(t *testing.T) {
	b := EncodePage(sampleBody())
	check := func(what string, d []byte) {
		t.Helper()
		if _, err := DecodePage(d, testStream); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for i := range b {
		check(fmt.Sprintf("cut at %d", i), b[:i:i])
		for bit := range 8 {
			d := bytes.Clone(b)
			d[i] ^= 1 << bit
			check(fmt.Sprintf("byte %d bit %d", i, bit), d)
		}
	}
	check("a byte more", append(bytes.Clone(b), 0))
	if _, err := DecodePage(b, stream.ID{9}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("as another stream's: %v", err)
	}
	// Checksums that are good, over what is no page of the stream.
	other := sampleBody()
	other.StreamId = stream.ID{9}.String()
	check("names another stream", reseal(EncodePage(other), testStream))
	gap := sampleBody()
	gap.Refs[1].FirstSeq++
	check("with a gap", EncodePage(gap))
	check("empty", EncodePage(&indexpb.RefPageBody{StreamId: testStream.String(), Level: 1}))
	check("no message", reseal(append(bytes.Clone(b[:preamble]), 0xff, 0xff, 0, 0, 0, 0), testStream))
	long := append(bytes.Clone(b), make([]byte, MaxPageBytes)...)
	check("too long", reseal(long, testStream))
}

func TestNewerPagesAreNotCorrupt(t *testing.T) {
	for at := 4; at < preamble; at++ {
		b := EncodePage(sampleBody())
		b[at]++
		if _, err := DecodePage(reseal(b, testStream), testStream); !errors.Is(err, ErrVersion) || errors.Is(err, ErrCorrupt) {
			t.Errorf("byte %d: %v", at, err)
		}
	}
}

// Fields that a newer program added to a ref go through a page unchanged.
func TestUnknownFieldsStay(t *testing.T) {
	body := sampleBody()
	body.Refs[1].ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1}) // field 127
	got, err := DecodePage(EncodePage(body), testStream)
	if err != nil || !proto.Equal(got, body) {
		t.Errorf("%v, %v", got, err)
	}
}

// FuzzDecodePage looks behind the checksum.
func FuzzDecodePage(f *testing.F) {
	f.Add(EncodePage(sampleBody()), true)
	f.Add(EncodePage(sampleBody()), false)
	f.Fuzz(func(t *testing.T, b []byte, good bool) {
		if good && len(b) >= preamble+crcBytes {
			reseal(b, testStream)
		}
		body, err := DecodePage(b, testStream)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Fatalf("untyped error: %v", err)
			}
			return
		}
		p := PageOf(body, "page/x", 1)
		if err := checkPage(p, body); err != nil {
			t.Fatal(err)
		}
	})
}
