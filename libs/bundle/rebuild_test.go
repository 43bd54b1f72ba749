package bundle

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"reflect"
	"testing"

	"github.com/nova-stream/nova/libs/stream"
)

const rebuiltSlot = 42

var wanted = Ident{Chain: testChain, Slot: rebuiltSlot, Profile: stream.ProfileStandard}

// rebuilt is a bundle, what its footer says, and where its entries end.
func rebuilt(t *testing.T) (whole []byte, f Footer, end int) {
	t.Helper()
	whole = build(t, rebuiltSlot, entries(t))
	f, _, err := Parse(whole)
	if err != nil {
		t.Fatal(err)
	}
	last := f.Entries[len(f.Entries)-1]
	return whole, f, int(last.Offset + last.Length)
}

// sure fails unless damaged bytes are all entries there were, or an error: with
// one entry less a number would be given twice (I1). It reports which.
func sure(t *testing.T, b []byte, want Footer) bool {
	t.Helper()
	got, err := Rebuild(b, wanted)
	if err == nil && !reflect.DeepEqual(got.Entries, want.Entries) {
		t.Fatalf("%d entries of %d", len(got.Entries), len(want.Entries))
	}
	if err == nil && (got.IsSeal || got.Chain != testChain || got.Slot != rebuiltSlot || got.Profile != stream.ProfileStandard || got.Size != want.Size) {
		t.Fatalf("it is %+v", got.Ident)
	}
	if err != nil && !errors.Is(err, ErrCorrupt) {
		t.Fatalf("%v, want ErrCorrupt", err)
	}
	return err == nil
}

// Case C21: one bit, wherever it is.
func TestRebuildOfAFlippedBit(t *testing.T) {
	whole, f, _ := rebuilt(t)
	for i := range whole {
		for bit := range 8 {
			b := bytes.Clone(whole)
			b[i] ^= 1 << bit
			if !sure(t, b, f) {
				t.Errorf("bit %d of byte %d of %d: not rebuilt", bit, i, len(whole))
			}
		}
	}
}

// Bytes missing at the end: what follows the entries must show that they are all.
func TestRebuildOfACutBundle(t *testing.T) {
	whole, f, end := rebuilt(t)
	row := end + footerEntry // the fence's: it has no body
	for n := range whole {
		if ok := sure(t, whole[:n], f); ok != (n >= row) {
			t.Errorf("%d bytes of %d, entries end at %d: rebuilt is %v", n, len(whole), end, ok)
		}
	}
	if sure(t, append(bytes.Clone(whole), 0), f) {
		t.Error("more bytes than were written are taken")
	}
}

// Zeros over any stretch, as a lost sector leaves them: rebuilt if the entries
// and either the footer's start or the trailer are left.
func TestRebuildOfZeros(t *testing.T) {
	whole, f, end := rebuilt(t)
	for from := 0; from <= len(whole); from += 3 {
		for to := from; to <= len(whole); to += 3 {
			b := bytes.Clone(whole)
			clear(b[from:to])
			ok := sure(t, b, f)
			afterEntries := from >= end && (from >= end+footerEntry || to <= len(whole)-trailer)
			if onlyStart := to <= 16; (afterEntries || onlyStart) && !ok {
				t.Errorf("zeros from %d to %d of %d, entries end at %d: not rebuilt", from, to, len(whole), end)
			}
		}
	}
}

// An entry that nobody lists any more: the first k of n are readable and what
// follows is neither the next nor the footer.
func TestRebuildNeverLeavesAnEntryOut(t *testing.T) {
	whole, f, end := rebuilt(t)
	rows := 0 // bytes of the footer's rows before i
	for i, e := range f.Entries {
		b := bytes.Clone(whole)
		b[e.Offset+1] ^= 0x80
		if !sure(t, b, f) {
			t.Errorf("entry %d is damaged, the footer is not: not rebuilt", i)
		}
		b[len(b)-1] ^= 1
		if sure(t, b, f) {
			t.Errorf("entry %d and the trailer are damaged: rebuilt", i)
		}
		// The same with the rest of the entries cut out: the footer follows at once.
		b = append(bytes.Clone(whole[:e.Offset]), whole[end:]...)
		if sure(t, b, f) {
			t.Errorf("entries from %d on are cut out: rebuilt", i)
		}
		// And the footer is cut off where it speaks of one that is not there.
		if b = b[:int(e.Offset)+rows+10]; sure(t, b, f) {
			t.Errorf("entries from %d on, and what the footer says after it, are cut out: rebuilt", i)
		}
		rows += footerEntry + len(e.Header)
	}
}

func TestRebuildTakesNothingOfAnotherSlot(t *testing.T) {
	other := build(t, rebuiltSlot+1, entries(t))
	f, err := Rebuild(other, wanted)
	if err != nil || f.Slot != rebuiltSlot+1 || len(f.Entries) != 0 {
		t.Errorf("an intact bundle of another slot: %+v, %v", f, err)
	}
	for i := range preamble {
		b := bytes.Clone(other)
		b[i] ^= 4
		if f, err := Rebuild(b, wanted); !errors.Is(err, ErrCorrupt) {
			t.Errorf("byte %d: %+v, %v", i, f.Ident, err)
		}
	}
}

func TestRebuildLeavesLaterVersionsAlone(t *testing.T) {
	b := build(t, rebuiltSlot, entries(t))
	b[4] = Version + 1
	binary.LittleEndian.PutUint32(b[preamble-crcBytes:], crc32.Checksum(b[:preamble-crcBytes], castagnoli))
	for _, at := range []int{len(b) - 9, len(b) - trailer - 9} {
		b[at] ^= 1
		if _, err := Rebuild(b, wanted); !errors.Is(err, ErrVersion) {
			t.Errorf("%v, want ErrVersion", err)
		}
	}
}

func TestRebuildOfASeal(t *testing.T) {
	s := testSeal()
	want := Ident{Chain: s.Chain, Slot: s.Slot, Profile: stream.ProfileStandard}
	whole := EncodeSeal(s)
	for i := range whole {
		b := bytes.Clone(whole)
		b[i] ^= 1
		if f, err := Rebuild(b, want); err != nil || !f.IsSeal || f.Slot != s.Slot {
			t.Errorf("byte %d: %+v, %v", i, f.Ident, err)
		}
	}
	for _, b := range [][]byte{nil, make([]byte, sealBytes), whole[:preamble-1]} {
		if f, err := Rebuild(b, want); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d bytes: %+v, %v", len(b), f.Ident, err)
		}
	}
}
