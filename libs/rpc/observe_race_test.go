package rpc

import (
	"context"
	"testing"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
)

// A stream whose context ends while it begins is observed once; the race detector
// watches.
func TestStreamThatIsCancelledWhileItBegins(t *testing.T) {
	o, err := newObserver(Options{}, client)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			cancel()
		}()
		r, _ := o.ClientReporter(ctx, interceptors.CallMeta{Service: "nova.test.v1.Test", Method: "Watch", Typ: interceptors.ServerStream})
		r.PostCall(nil, 0)
		<-ended
	}
}
