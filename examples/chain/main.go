// Chain shows with real servers how retries multiply through services that
// call one another, and how [httpretry.Middleware] makes them add up.
//
// Services stand in a row, each makes up to three attempts to reach the next,
// and what is at the bottom is down. One request comes in at the top. The
// servers are all on this machine, so it needs no network:
//
//	go run ./examples/chain
//
// It ends with exit status 0 if the servers counted what is expected.
package main

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/internal/frame"
	"github.com/seed421102f4/httpretry/strategies"
)

// newService puts a service together. This is what the program is about: the
// handler is inside Middleware, and what it sends has the context of what it
// was asked.
func newService(next string, middleware layer) (http.Handler, error) {
	transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
		MaxAttempts: 3,
		Backoff:     strategies.Constant{Wait: 100 * time.Microsecond}, // nobody else is at these servers
		Budget:      httpretry.Unlimited{},                             // the default would hide how bad it can get
	}})
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: transport}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// r's context says on whose behalf the request is sent.
		req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, next, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		resp, err := client.Do(req)
		if err != nil {
			http.Error(w, "the next service cannot be reached", http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		if resp.StatusCode >= 500 {
			_, _ = io.Copy(io.Discard, resp.Body) // to the end, so that the connection is kept
			http.Error(w, "the next service failed", http.StatusBadGateway)
			return
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	})
	return middleware(handler), nil
}

// layer is what a service has around its handler.
type layer func(http.Handler) http.Handler

// with is the one line that a service needs.
func with(handler http.Handler) http.Handler { return httpretry.Middleware(handler) }

func without(handler http.Handler) http.Handler { return handler }

const helpText = `Chain shows how retries multiply through services that call one another, and
how httpretry.Middleware makes them add up.

Usage:
  chain         it has no flags, needs no network and takes less than a second

Exit status:
  0     the servers counted what is expected
  1     some server did not
  2     there were arguments
  130   interrupted by Ctrl-C (SIGINT) or SIGTERM
`

var program = frame.Program{Name: "chain", Help: helpText, Show: func(ctx context.Context, stdout io.Writer) error {
	return show(ctx, stdout, outages(), recoveries())
}}

func main() { frame.Main(program.Run) }
