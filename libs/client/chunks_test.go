package client_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/client/clienttest"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Pages of chunks are pages of records to the caller, limits and checks included.
func TestPagesOfChunksAreRecords(t *testing.T) {
	srv, c := start(t)
	srv.MaxPage = 3
	srv.Store(bucket, name, counted(10)...)
	var chunks atomic.Int32
	srv.Chunks = func(*novapb.Chunk) { chunks.Add(1) }
	if got, err := readAll(t, c, nil); err != nil || !slices.Equal(got, counted(10)) || chunks.Load() != 10 {
		t.Errorf("read %v in %d chunks, %v", got, chunks.Load(), err)
	}
	if got, err := readAll(t, c, func(r *novapb.ReadRequest) { r.SetCount(5) }); err != nil || !slices.Equal(got, counted(5)) {
		t.Errorf("read %v of 5, %v", got, err)
	}
	six := len("01234x")
	if got, err := readAll(t, c, func(r *novapb.ReadRequest) { r.SetBytes(uint64(six)) }); err != nil || len(got) == 0 || len(got) == 10 {
		t.Errorf("read %v of %d bytes, %v", got, six, err)
	}
	err := c.Read(limit(t), client.ReadConfig{Request: &novapb.ReadRequest{Bucket: bucket, Stream: name}}, func(p *novapb.ReadResponse) error {
		if len(p.GetChunks()) > 0 || len(p.GetRecords()) == 0 {
			t.Errorf("the caller got %v", p)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	srv.Corrupt(bucket, name, 4)
	if got, err := readAll(t, c, nil); !errors.Is(err, client.ErrBroken) || !slices.Equal(got, counted(3)) {
		t.Errorf("a changed record: read %v, %v", got, err)
	}
}

// A chunk that does not decode, as one of a newer version does not, is asked for as
// records; never is anything of it returned (I10).
func TestChunksThatDoNotDecodeAreAskedForAsRecords(t *testing.T) {
	for name, change := range map[string]func(*novapb.Chunk){
		"version":   func(c *novapb.Chunk) { c.Header[4]++ },
		"header":    func(c *novapb.Chunk) { c.Header[20] ^= 1 },
		"no header": func(c *novapb.Chunk) { c.Header = nil },
		"longer":    func(c *novapb.Chunk) { c.Header = append(c.Header, 0) },
		"payload":   func(c *novapb.Chunk) { c.Payload[len(c.Payload)-1] ^= 1 },
		"cut off":   func(c *novapb.Chunk) { c.Payload = c.Payload[1:] },
	} {
		t.Run(name, func(t *testing.T) { chunksThatDoNotDecode(t, change) })
	}
}

func chunksThatDoNotDecode(t *testing.T, change func(*novapb.Chunk)) {
	srv, c := start(t)
	srv.MaxPage = 3
	srv.Store(bucket, name, counted(10)...)
	n := 0
	srv.Chunks = func(c *novapb.Chunk) {
		if n++; n >= 5 {
			change(c)
		}
	}
	var pages atomic.Int32
	srv.SetFault(func(step clienttest.Step) error {
		if step == clienttest.Paging {
			pages.Add(1)
		}
		return nil
	})
	if got, err := readAll(t, c, nil); err != nil || !slices.Equal(got, counted(10)) {
		t.Errorf("read %v, %v", got, err)
	}
	// Two of chunks and perhaps a third that was asked for ahead, then records.
	if got := pages.Load(); got < 5 || got > 6 {
		t.Errorf("%d requests", got)
	}
}
