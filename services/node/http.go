package node

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/nova-stream/nova/libs/rpc"
)

// Web is an HTTP listener.
type Web struct {
	lis    net.Listener
	server *http.Server
	done   chan struct{}
}

// OpenWeb opens the port and serves handler on it until Stop; a failure goes to
// the group. flag names the setting of the address.
func (g *Group) OpenWeb(flag, address string, handler http.Handler, secure *tls.Config) (*Web, error) {
	lis, err := rpc.Listen(address, flag)
	if err != nil {
		return nil, err
	}
	w := &Web{lis: lis, done: make(chan struct{}), server: &http.Server{Handler: handler, TLSConfig: secure, ReadHeaderTimeout: 10 * time.Second}}
	go func() {
		defer close(w.done)
		var err error
		if secure != nil {
			err = w.server.ServeTLS(lis, "", "")
		} else {
			err = w.server.Serve(lis)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			g.fail(err)
		}
	}()
	return w, nil
}

// Addr returns the real host:port, "" of no listener.
func (w *Web) Addr() string {
	if w == nil {
		return ""
	}
	return w.lis.Addr().String()
}

// Stop lets requests under way end until ctx ends, then closes them.
func (w *Web) Stop(ctx context.Context) {
	if err := w.server.Shutdown(ctx); err != nil {
		_ = w.server.Close() // they had their time
	}
	<-w.done
}

// OpenAdmin serves the admin pages at --metrics-listen; nil if there are none.
func (g *Group) OpenAdmin(title string) (*Web, error) {
	s := g.process.Settings
	if s.MetricsListen == "" {
		return nil, nil
	}
	return g.OpenWeb("--metrics-listen", s.MetricsListen, g.process.AdminHandler(title, g.Ready, g.Facts), nil)
}
