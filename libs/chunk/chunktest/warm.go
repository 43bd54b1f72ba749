// Package chunktest helps tests of those who use chunks.
package chunktest

import (
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
)

// Warm makes what compresses and decompresses, which is shared and made at its first
// use. A TestMain calls it if tests run in bubbles of synctest: what is made in the
// bubble of one test cannot be used in another. It panics if that fails.
func Warm() {
	b, _, err := chunk.Encode(nil, chunk.Input{StreamID: stream.NewID(), Batches: []chunk.InputBatch{
		{Records: []stream.Record{{Body: make([]byte, 10_000)}}},
	}})
	if err == nil {
		_, _, err = chunk.Decode(b)
	}
	if err != nil {
		panic(err)
	}
}
