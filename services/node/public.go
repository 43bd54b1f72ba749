package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/libs/validate"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Public are the settings of the public listeners.
type Public struct {
	Listen, HTTPListen string
	Auth               string
	Cert, Key          string // files of PEM
	ClientCA           string
	Domain             string
	Origins            []string
}

// Flags declares the settings.
func (p *Public) Flags(f *config.Flags) {
	f.String(&p.Listen, "listen", "127.0.0.1:7780", "address of the public gRPC listener, with reflection and health")
	f.String(&p.HTTPListen, "http-listen", "127.0.0.1:7781", "address of the public HTTP listener, JSON; empty: none")
	f.String(&p.Auth, "auth", "", "off or tokens; empty: off, where every public listener is on loopback, else it must be said")
	f.String(&p.Cert, "tls-cert", "", "PEM file of the certificate of the public listeners; empty: no TLS")
	f.String(&p.Key, "tls-key", "", "PEM file of the key of --tls-cert")
	f.String(&p.ClientCA, "tls-client-ca", "", "PEM file of the authorities whose client certificates are demanded; empty: none are")
	f.String(&p.Domain, "domain", "", "serve each bucket also at https://{bucket}.{domain}")
	f.Strings(&p.Origins, "cors-origin", nil, "origins that browsers may call from; empty: none")
}

// Check validates.
func (p *Public) Check() error {
	if err := errors.Join(CheckAddress("--listen", p.Listen, false), CheckAddress("--http-listen", p.HTTPListen, true)); err != nil {
		return err
	}
	switch p.Auth {
	case "off":
	case "":
		for flag, address := range map[string]string{"--listen": p.Listen, "--http-listen": p.HTTPListen} {
			if address != "" && !Loopback(address) {
				return fmt.Errorf("--auth must be said, because others can reach %s %s: off lets everybody in", flag, address)
			}
		}
	case "tokens":
		return errors.New("--auth tokens is not available in this version")
	default:
		return fmt.Errorf("--auth: %q is neither off nor tokens", p.Auth)
	}
	switch {
	case p.Domain != "":
		return errors.New("--domain: hosts per bucket are not available in this version")
	case len(p.Origins) > 0:
		return errors.New("--cors-origin: calls from browsers are not available in this version")
	case (p.Cert == "") != (p.Key == ""):
		return errors.New("--tls-cert and --tls-key go together")
	case p.ClientCA != "" && p.Cert == "":
		return errors.New("--tls-client-ca needs --tls-cert")
	}
	return nil
}

// TLS reads the certificates; nil: no TLS.
func (p *Public) TLS() (*tls.Config, error) {
	if p.Cert == "" {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(p.Cert, p.Key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	if p.ClientCA == "" {
		return c, nil
	}
	pem, err := os.ReadFile(p.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("--tls-client-ca: %w", err)
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !c.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--tls-client-ca: %s holds no certificate", p.ClientCA)
	}
	return c, nil
}

// options are those of servers that clients call, through a gateway or without
// one: requests of the public API are validated here.
func options(p *Process) rpc.Options {
	o := p.Options()
	o.Validate = edge
	return o
}

// edge checks a request. Messages of a session are checked by the session
// itself, which answers the batch instead of ending the call.
func edge(m proto.Message) error {
	if _, ok := m.(*novapb.AppendSessionRequest); ok {
		return nil
	}
	return validate.Request(m)
}

// Endpoint opens the public gRPC listener.
func (p *Public) Endpoint(proc *Process) (*rpc.Server, error) {
	secure, err := p.TLS()
	if err != nil {
		return nil, err
	}
	return rpc.NewServer(rpc.ServerConfig{Options: outwardOptions(proc), Listen: p.Listen, TLS: secure})
}

// JSON is the HTTP listener of the public API.
type JSON struct {
	web      *Web
	endpoint *rpc.InprocServer
}

// OpenHTTP serves the JSON API at --http-listen until the group stops; nil if
// there is none. Its
// handler calls the gateway in process through the same interceptors as callers
// of gRPC.
func (p *Public) OpenHTTP(proc *Process, g *Group, gateway Part, handler func(grpc.ClientConnInterface) http.Handler) (*JSON, error) {
	if p.HTTPListen == "" {
		return nil, nil
	}
	secure, err := p.TLS()
	if err != nil {
		return nil, err
	}
	inproc := rpc.NewInproc(outwardOptions(proc))
	endpoint, err := inproc.Server("gateway")
	if err != nil {
		return nil, err
	}
	gateway.Register(endpoint)
	endpoint.Start()
	// Its own pool: this server is nobody else's.
	pool, err := rpc.NewPool(rpc.PoolConfig{Options: proc.Options(), Inproc: inproc, Registry: proc.Registry})
	if err != nil {
		return nil, err
	}
	proc.OnClose(pool.Close)
	conn, err := pool.Address(endpoint.Address())
	if err != nil {
		return nil, err
	}
	web, err := g.OpenWeb("--http-listen", p.HTTPListen, handler(conn), secure)
	if err != nil {
		return nil, err
	}
	j := &JSON{web: web, endpoint: endpoint}
	g.listen(gateway, j.stop)
	return j, nil
}

// Addr returns the real host:port, "" of no listener.
func (j *JSON) Addr() string {
	if j == nil {
		return ""
	}
	return j.web.Addr()
}

// stop closes the listener; requests under way have until ctx ends.
func (j *JSON) stop(ctx context.Context) {
	j.web.Stop(ctx)
	j.endpoint.Stop(ctx)
}
