package failover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// direct calls an index of this process, without a wire and without faults.
type direct struct{ srv indexpb.IndexServiceServer }

func (d direct) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	if err := ctx.Err(); err != nil {
		return reason.New(reason.Code(err), "", err.Error())
	}
	name := method[strings.LastIndexByte(method, '/')+1:]
	for _, m := range indexpb.IndexService_ServiceDesc.Methods {
		if m.MethodName != name {
			continue
		}
		res, err := m.Handler(d.srv, ctx, func(in any) error {
			proto.Merge(in.(proto.Message), args.(proto.Message))
			return nil
		}, nil)
		if err == nil {
			proto.Merge(reply.(proto.Message), res.(proto.Message))
		}
		return err
	}
	return fmt.Errorf("no method %s", method)
}

func (d direct) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, reason.New(codes.Unimplemented, "", "no streams")
}

// alarms keeps what logs say that must never be said.
type alarms struct {
	more func() ([]string, error) // nil: what is heard is all

	mu   sync.Mutex
	said []string
}

// harmless are errors that are logged and tell of no damage.
var harmless = []string{"a chain that broke cannot be sealed yet"}

// heard notes the errors in what was logged.
func (a *alarms) heard(text string) {
	for line := range strings.Lines(text) {
		if !strings.Contains(line, " level=ERROR ") || slices.ContainsFunc(harmless, func(h string) bool { return strings.Contains(line, h) }) {
			continue
		}
		a.mu.Lock()
		a.said = append(a.said, line)
		a.mu.Unlock()
	}
}

// err tells the alarms.
func (a *alarms) err() error {
	if a.more != nil {
		lines, err := a.more()
		if err != nil {
			return err
		}
		a.heard(strings.Join(lines, ""))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.said) == 0 {
		return nil
	}
	return errors.New("errors were logged:\n" + strings.Join(a.said[:min(len(a.said), 20)], ""))
}

// listen hears what this process logs until the test ends.
func listen(t *testing.T) *alarms {
	t.Helper()
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	a, screen := &alarms{}, os.Stderr
	os.Stderr = to
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		lines := bufio.NewReader(from)
		for {
			line, err := lines.ReadString('\n')
			_, _ = screen.WriteString(line)
			a.heard(line)
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		os.Stderr = screen
		_ = to.Close()
		<-heard
		_ = from.Close()
	})
	return a
}
