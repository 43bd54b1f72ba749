package failover

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nova-stream/nova/libs/reason"
)

// kind says what an operation asked for.
type kind string

const (
	appendOp kind = "append"
	tailOp   kind = "tail"
	readOp   kind = "read"
	trimOp   kind = "trim"
	sealOp   kind = "seal"
	tokenOp  kind = "token"
)

// outcome says what became of it.
type outcome string

const (
	done    outcome = "done"
	refused outcome = "refused" // by the state of the stream, which the refusal tells
	unknown outcome = "unknown" // it may take effect at any moment after its request
	void    outcome = "void"    // nothing happened, and nothing was said about the stream
)

// never is the end of an operation that nobody saw ending.
const never = math.MaxInt64

// digest stands for the body of one record.
type digest uint64

func digestOf(body []byte) digest {
	sum := sha256.Sum256(body)
	return digest(binary.BigEndian.Uint64(sum[:]))
}

// batchID names a producer's batch.
type batchID struct {
	producer     string
	epoch, batch uint64
}

// startKind says where a read starts.
type startKind uint8

const (
	fromFirst startKind = iota
	fromSeq
	fromTail // so many records before the tail
)

// op is one call on a stream, and its answer.
type op struct {
	client int
	call   int64 // ns since the start of the history
	ret    int64
	kind   kind

	// What was asked.
	bodies   []digest // of an append
	producer *batchID
	match    *uint64
	token    *string // the fencing token given
	seal     bool    // of an append
	seq      uint64  // of a trim or a read
	start    startKind
	clamp    bool
	set      string // the token to set

	// What was answered.
	outcome outcome
	reason  reason.Reason // of a refusal, or of a failure
	claim   *uint64       // the number in a refusal; nil: none was given
	text    string        // of a failure, for people

	first, next uint64   // of an ack and of a read's records
	duplicate   bool     // of an ack
	records     []digest // of a read
	trim        uint64   // the first retained number
	tail        uint64
	sealed      bool // of a tail; of a read: the end of the stream
	ackTail     uint64

	// What only the observations look at.
	stamps     []int64 // of a read's records
	firstStamp int64   // of an ack
	lastStamp  int64   // of an ack, or at the tail
	hashBefore uint64  // of a read, with records
	hashAfter  uint64  // of a read with records, an ack, or at the tail
	broken     string  // the answer contradicts itself

	// at is where the batch of an unknown append is known to be, by what others
	// saw; nil: nobody saw it.
	at *uint64
}

func (o *op) String() string {
	var b strings.Builder
	end := "never"
	if o.ret != never {
		end = time.Duration(o.ret).Round(time.Microsecond).String()
	}
	fmt.Fprintf(&b, "%v..%s c%d %s", time.Duration(o.call).Round(time.Microsecond), end, o.client, o.kind)
	switch o.kind {
	case appendOp:
		fmt.Fprintf(&b, " %d records %x", len(o.bodies), o.bodies[:min(1, len(o.bodies))])
		if o.seal {
			b.WriteString(" and seal")
		}
	case readOp:
		fmt.Fprintf(&b, " %s", [...]string{"from the first", fmt.Sprint("from ", o.seq), fmt.Sprint("last ", o.seq)}[o.start])
	case trimOp:
		fmt.Fprintf(&b, " %d", o.seq)
	case tokenOp:
		fmt.Fprintf(&b, " := %q", o.set)
	case tailOp, sealOp:
	}
	if o.producer != nil {
		fmt.Fprintf(&b, " producer %s/%d/%d", o.producer.producer, o.producer.epoch, o.producer.batch)
	}
	if o.match != nil {
		fmt.Fprintf(&b, " match %d", *o.match)
	}
	if o.token != nil {
		fmt.Fprintf(&b, " token %q", *o.token)
	}
	fmt.Fprintf(&b, " -> %s", o.outcome)
	switch {
	case o.outcome != done:
		fmt.Fprintf(&b, " %s", o.reason)
		if o.claim != nil {
			fmt.Fprintf(&b, " %d", *o.claim)
		}
		if o.at != nil {
			fmt.Fprintf(&b, " (is at %d)", *o.at)
		}
		if o.reason == "" {
			fmt.Fprintf(&b, " %.80s", o.text)
		}
	case o.kind == appendOp:
		fmt.Fprintf(&b, " [%d,%d) tail %d", o.first, o.next, o.ackTail)
		if o.duplicate {
			b.WriteString(" again")
		}
	case o.kind == readOp:
		fmt.Fprintf(&b, " [%d,%d) trim %d tail %d end %v", o.first, o.next, o.trim, o.tail, o.sealed)
	case o.kind == tailOp:
		fmt.Fprintf(&b, " trim %d tail %d sealed %v", o.trim, o.tail, o.sealed)
	case o.kind == trimOp:
		fmt.Fprintf(&b, " trim %d tail %d", o.trim, o.tail)
	default:
		fmt.Fprintf(&b, " tail %d", o.tail)
	}
	return b.String()
}
