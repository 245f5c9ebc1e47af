package main

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/seed421102f4/httpretry"
)

// experiment is one request to a chain of services, and its expected result.
type experiment struct {
	title    string
	wrap     wrapper
	failures int64   // of the last server, before it answers 200
	status   int     // of the response to the client
	saw      []int64 // requests: the first service, ..., the last server
}

func outages() []experiment {
	const always = math.MaxInt64
	return []experiment{
		{"without Middleware", without, always, 502, []int64{1, 3, 9, 27}},
		{"with Middleware", httpretry.Middleware, always, 502, []int64{1, 3, 5, 7}},

		{"without Middleware", without, always, 502, []int64{1, 3, 9, 27, 81, 243}},
		{"with Middleware", httpretry.Middleware, always, 502, []int64{1, 3, 5, 7, 9, 11}},
	}
}

// recoveries returns the control experiments. A retry saves their requests with
// Middleware and without.
func recoveries() []experiment {
	return []experiment{
		{"without Middleware", without, 1, 200, []int64{1, 1, 1, 2}},
		{"with it", httpretry.Middleware, 1, 200, []int64{1, 1, 1, 2}},
	}
}

const intro = `A client sends one request to the first of several services. Each service makes
up to 3 attempts to reach the next one. The last server is down: it answers 503.

                         LAST SERVER   REQUESTS PER SERVER, IN THEIR ORDER
`

const outro = `
A retry says that it is one (Retry-Attempt). What a service sends because of a
retry is sent once, since the service that retries will do so again. So the
retries of all services add up instead of multiplying.

`

// show runs the experiments and prints how many requests the servers saw.
func show(out io.Writer, outages, recoveries []experiment) error {
	fmt.Fprint(out, intro)
	services := 0
	for _, e := range outages {
		_, saw, err := e.run()
		if err != nil {
			return err
		}
		if e.services() != services {
			services = e.services()
			fmt.Fprintf(out, "%d services\n", services)
		}
		fmt.Fprintf(out, "  %-22s %11d   %s\n", e.title, saw[services], arrows(saw))
	}

	var parts []string
	for _, e := range recoveries {
		status, saw, err := e.run()
		if err != nil {
			return err
		}
		parts = append(
			parts, fmt.Sprintf("%d after %d calls %s", status, saw[e.services()], e.title))
	}
	fmt.Fprint(out, outro)
	fmt.Fprintf(out, "If the last server fails only once:\n%s.\n", strings.Join(parts, ", "))
	return nil
}

func (e experiment) services() int { return len(e.saw) - 1 }

// run sends the request. It returns the status of the response and the number
// of requests that each server counted, and an error if they are not as
// expected.
func (e experiment) run() (status int, saw []int64, err error) {
	requests := make([]atomic.Int64, len(e.saw))
	last := &requests[e.services()]
	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if last.Load() <= e.failures {
			http.Error(w, "down", http.StatusServiceUnavailable)
		}
	}))
	var server *httptest.Server
	// From the last to the first, since each has to know the URL of the next.
	for i := range slices.Backward(requests) {
		if server != nil {
			if handler, err = newService(server.URL, e.wrap); err != nil {
				return 0, nil, err
			}
		}
		server = httptest.NewServer(counting(&requests[i], handler))
		defer server.Close() // closes the connections to it as well
	}

	resp, err := http.Get(server.URL)
	if err != nil {
		return 0, nil, err
	}
	status = resp.StatusCode
	_ = resp.Body.Close() // only the status counts
	for i := range requests {
		saw = append(saw, requests[i].Load())
	}
	if status != e.status || !slices.Equal(saw, e.saw) {
		err = fmt.Errorf("%d services %s: got status %d and %s requests, expected %d and %s",
			e.services(), e.title, status, arrows(saw), e.status, arrows(e.saw))
	}
	return status, saw, err
}

// counting counts the requests to handler.
func counting(requests *atomic.Int64, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		handler.ServeHTTP(w, r)
	})
}

// arrows formats numbers as 1 → 3 → 9.
func arrows(numbers []int64) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(numbers), " ", " → "), "[]")
}
