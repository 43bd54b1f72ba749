package gateway

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc/wire"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Limits of HTTP requests.
const (
	// maxJSONBody limits a JSON request body: a batch of 3 MiB in base64, with
	// room for its fields.
	maxJSONBody = 8 << 20
	// maxReadHeader is how long a client may take to send its headers.
	maxReadHeader = 10 * time.Second
)

// httpAPI is the JSON form of the public API. It calls the gRPC form through
// conn, and so through the same validation, metrics and traces.
type httpAPI struct {
	buckets novapb.BucketServiceClient
	streams novapb.StreamServiceClient
	appends novapb.AppendServiceClient
	reads   novapb.ReadServiceClient
}

// Handler returns the JSON API over a connection to the public services.
func Handler(conn grpc.ClientConnInterface) http.Handler {
	a := &httpAPI{
		buckets: novapb.NewBucketServiceClient(conn), streams: novapb.NewStreamServiceClient(conn),
		appends: novapb.NewAppendServiceClient(conn), reads: novapb.NewReadServiceClient(conn),
	}
	mux, allowed := http.NewServeMux(), map[string][]string{}
	handle := func(pattern string, h func(http.ResponseWriter, *http.Request) (any, error)) {
		method, path, _ := strings.Cut(pattern, " ")
		allowed[path] = append(allowed[path], method)
		if method == http.MethodGet {
			allowed[path] = append(allowed[path], http.MethodHead)
		}
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			for _, name := range []string{"bucket", "stream"} {
				if v, err := url.PathUnescape(r.PathValue(name)); err == nil {
					r.SetPathValue(name, v)
				}
			}
			// The answer is counted until the client has it. A client that does not
			// take it, while others want its room, loses its connection.
			ctx, kept := wire.Keep(r.Context())
			defer kept.Free()
			answer, err := h(w, r.WithContext(ctx))
			kept.Sending(func() { _ = http.NewResponseController(w).SetWriteDeadline(time.Now()) })
			if err != nil {
				writeError(w, err)
				return
			}
			writeJSON(w, http.StatusOK, answer)
		})
	}
	const streams = "/v1/buckets/{bucket}/streams"
	const stream = streams + "/{stream}"
	routes := []struct {
		pattern string
		handle  func(*http.Request) (any, error)
	}{
		{"GET /v1/buckets", a.listBuckets},
		{"POST /v1/buckets", a.createBucket},
		{"PUT /v1/buckets/{bucket}", a.createBucket},
		{"GET /v1/buckets/{bucket}", a.getBucket},
		{"PATCH /v1/buckets/{bucket}", a.updateBucket},
		{"DELETE /v1/buckets/{bucket}", a.deleteBucket},
		{"GET " + streams, a.listStreams},
		{"POST " + streams, a.createStream},
		{"PUT " + stream, a.createStream},
		{"GET " + stream, a.getStream},
		{"PATCH " + stream, a.updateStream},
		{"DELETE " + stream, a.deleteStream},
		{"GET " + stream + "/records", a.read},
		{"GET " + stream + "/tail", a.checkTail},
		{"POST " + stream + "/trim", a.trim},
		{"POST " + stream + "/seal", a.seal},
		{"PUT " + stream + "/fence", a.fence},
	}
	for _, r := range routes {
		handle(r.pattern, func(_ http.ResponseWriter, req *http.Request) (any, error) { return r.handle(req) })
	}
	handle("POST "+stream+"/records", a.append)
	handle("GET /openapi.yaml", func(http.ResponseWriter, *http.Request) (any, error) {
		return nil, reason.Missing("the OpenAPI description")
	})
	for path, methods := range allowed {
		allow := strings.Join(methods, ", ")
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", allow)
			refuse(w, http.StatusMethodNotAllowed, "INVALID_ARGUMENT", r.Method+" is not allowed here, only "+allow)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusNotFound, "NOT_FOUND", "no such path; see /v1/buckets")
	})
	return clean(mux)
}

// clean refuses paths that a ServeMux would redirect to another one, such as
// that of the bucket for a stream named "..". It routes on the escaped path: a
// ServeMux alone takes the name "%2F" for the end of a path.
func clean(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		escaped := r.URL.EscapedPath()
		segments := strings.Split(strings.TrimPrefix(escaped, "/"), "/")
		for i, s := range segments {
			if s == "." || s == ".." || s == "" && i < len(segments)-1 {
				writeError(w, reason.Field("path", `must not hold "", "." or ".." between slashes; a name is percent-encoded`))
				return
			}
		}
		// A copy, whose calls are part of the caller's trace, if it names one.
		inner := r.WithContext(propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header)))
		inner.URL = &url.URL{Path: escaped, RawQuery: r.URL.RawQuery}
		next.ServeHTTP(w, inner)
	})
}

// Server serves the JSON API; the caller gives it a listener.
func Server(conn grpc.ClientConnInterface) *http.Server {
	return &http.Server{Handler: Handler(conn), ReadHeaderTimeout: maxReadHeader}
}

// Serve serves until ctx ends, then lets requests under way finish for grace.
func Serve(ctx context.Context, server *http.Server, serve func() error, grace time.Duration) error {
	failed := make(chan error, 1)
	go func() { failed <- serve() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := server.Shutdown(stop); err != nil {
		_ = server.Close() // long polls and slow clients do not hold up a stop
	}
	if err := <-failed; err != nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
