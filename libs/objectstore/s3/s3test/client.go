package s3test

import "net/http"

// closing is an HTTP client that keeps no connection, so that nothing of it is
// left when Start returns.
type closing struct{}

func (closing) Do(req *http.Request) (*http.Response, error) {
	t := &http.Transport{DisableKeepAlives: true}
	return t.RoundTrip(req)
}
