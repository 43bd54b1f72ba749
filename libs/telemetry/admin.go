package telemetry

import (
	"fmt"
	"html/template"
	"net/http"
	"net/http/pprof"
	"time"
)

// Fact is one line of the status page.
type Fact struct{ Name, Value string }

// AdminHandler serves /metrics, /healthz (the process answers), /readyz (nil of
// ready, or 503 and why not), /debug/pprof/ and a status page at / that shows
// the facts. ready and page are called by each request and must not block.
func (t *Telemetry) AdminHandler(title string, ready func() error, page func() []Fact) http.Handler {
	started := time.Now()
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", t.Metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		data := struct {
			Title, Ready string
			Up           time.Duration
			Facts        []Fact
		}{Title: title, Up: time.Since(started).Round(time.Second), Facts: page()}
		if err := ready(); err != nil {
			data.Ready = err.Error()
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if err := statusPage.Execute(w, data); err != nil {
			t.Log.DebugContext(r.Context(), "status page", "err", err) // the client went away
		}
	})
	return mux
}

var statusPage = template.Must(template.New("status").Parse(`<!doctype html>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{{.Title}}</title>
<style>body{font:16px/1.5 system-ui;margin:2em auto;max-width:50em;padding:0 1em}td{padding:0 1.5em 0 0;vertical-align:top}</style>
<h1>{{.Title}}</h1>
<p>{{if .Ready}}<b>Not ready:</b> {{.Ready}}{{else}}Ready.{{end}} Up for {{.Up}}.</p>
<table>{{range .Facts}}<tr><td>{{.Name}}<td>{{.Value}}{{end}}</table>
<p><a href="/metrics">metrics</a> · <a href="/readyz">readiness</a> · <a href="/debug/pprof/">profiles</a></p>
`))
