// Chain shows with real servers how retries multiply in a chain of services
// that call one another, and how [httpretry.Middleware] makes them add up.
//
// Each service makes up to three attempts to reach the next one, and the last
// server is down. A client sends one request to the first service:
//
//	                   requests to the last server
//	services   without Middleware   with Middleware
//	       3                   27                 7
//	       5                  243                11
//
// The servers are all on this machine, so it needs no network:
//
//	go run ./examples/chain
//
// It ends with exit status 0 if the servers counted the expected numbers.
package main

import (
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

func main() {
	if err := show(os.Stdout, experiments()); err != nil {
		log.Fatal(err)
	}
}

// newService returns a service that calls the next one. It shows the two things
// that a service has to do. It wraps its handler in Middleware, and it sends
// its requests with the context of the request that it handles.
func newService(next string, wrap wrapper) (http.Handler, error) {
	transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
		MaxAttempts: 3,
		// Short, since nobody else uses these servers.
		Backoff: strategies.Constant{Wait: time.Millisecond},
		// The default budget would stop most of the retries to show.
		Budget: httpretry.Unlimited{},
	}})
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: transport}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The context of r says whether r is a retry.
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
		status := resp.StatusCode
		if status >= 500 {
			status = http.StatusBadGateway
		}
		w.WriteHeader(status)
		_, _ = io.Copy(w, resp.Body)
	})
	return wrap(handler), nil
}

// wrapper returns a handler that calls another one, as httpretry.Middleware
// does.
type wrapper func(http.Handler) http.Handler

func without(handler http.Handler) http.Handler { return handler }
