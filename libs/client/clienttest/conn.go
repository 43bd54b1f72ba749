package clienttest

import (
	"context"
	"io"
	"net"
	"sync/atomic"
)

// Dialer returns a dialer whose connections break after as many bytes, both
// directions together, as budget says for each; a negative budget never ends.
func Dialer(budget func() int64) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		n := budget()
		if n < 0 {
			return c, nil
		}
		cut := &cutConn{Conn: c}
		cut.left.Store(n)
		return cut, nil
	}
}

type cutConn struct {
	net.Conn

	left atomic.Int64
}

// grant takes up to n bytes from the budget.
func (c *cutConn) grant(n int) int {
	for {
		left := c.left.Load()
		g := min(left, int64(n))
		if c.left.CompareAndSwap(left, left-g) {
			return int(g)
		}
	}
}

func (c *cutConn) Write(b []byte) (int, error) {
	n := c.grant(len(b))
	n, err := c.Conn.Write(b[:n])
	if err == nil && n < len(b) {
		_ = c.Close()
		err = io.ErrClosedPipe
	}
	return n, err
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if g := c.grant(n); g < n {
		_ = c.Close()
		return g, io.ErrUnexpectedEOF
	}
	return n, err
}
