// Package flaky has what the programs share: a server that fails once, and a
// line for each attempt.
package flaky

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"github.com/seed421102f4/httpretry"
)

// Server responds to the first request with a 503, and to later ones with a
// text in JSON.
func Server(json string) *httptest.Server {
	var requests atomic.Int64
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		if requests.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, json)
	}))
}

// Print is the Config.Observe of the programs.
func Print(_ context.Context, e httpretry.Event) {
	fmt.Printf("attempt %d: %s %s: %s\n",
		e.Attempt.Number, e.Request.Method, e.Request.URL.Path, e.Status())
}
