package rpc

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// refusal is UNAVAILABLE for a call that never reached a server.
type refusal struct{ *status.Status }

func (r refusal) Error() string              { return r.Err().Error() }
func (r refusal) GRPCStatus() *status.Status { return r.Status }

// refused is the refusal of a server in process.
func refused(name, why string) error {
	return refusal{status.New(codes.Unavailable, Scheme+name+" "+why)}
}

// NotSent reports whether an error of a call through [Pool.Address] says that
// the call surely never reached its server, so that it may be sent again,
// whatever it does. False proves nothing.
func NotSent(err error) bool {
	var r refusal
	return errors.As(err, &r)
}
