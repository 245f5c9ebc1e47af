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

// experiments returns those that show prints. In the last two, a retry saves
// the request with Middleware and without.
func experiments() []experiment {
	const always = math.MaxInt64
	return []experiment{
		{"3 services without Middleware", without, always, 502, []int64{1, 3, 9, 27}},
		{"3 services with Middleware", httpretry.Middleware, always, 502, []int64{1, 3, 5, 7}},
		{"5 services without Middleware", without, always, 502, []int64{1, 3, 9, 27, 81, 243}},
		{"5 services with Middleware", httpretry.Middleware, always, 502, []int64{1, 3, 5, 7, 9, 11}},
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

If the last server fails only once:
`

// show runs the experiments and prints how many requests the servers saw.
func show(out io.Writer, experiments []experiment) error {
	fmt.Fprint(out, intro)
	var parts []string
	for _, e := range experiments {
		saw, err := e.run()
		if err != nil {
			return err
		}
		if last := saw[len(saw)-1]; e.status == http.StatusOK {
			parts = append(parts, fmt.Sprintf("%d after %d calls %s", e.status, last, e.title))
		} else {
			fmt.Fprintf(out, "%-31s %11d   %s\n", e.title, last, arrows(saw))
		}
	}
	fmt.Fprintf(out, "%s%s.\n", outro, strings.Join(parts, ", "))
	return nil
}

// run sends the request. It returns the number of requests that each server
// counted, and an error if they or the status are not as expected.
func (e experiment) run() (saw []int64, err error) {
	requests := make([]atomic.Int64, len(e.saw))
	last := &requests[len(requests)-1]
	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if last.Load() <= e.failures {
			http.Error(w, "down", http.StatusServiceUnavailable)
		}
	}))
	var url string
	// From the last to the first, since each has to know the URL of the next.
	for i := range slices.Backward(requests) {
		if url != "" {
			if handler, err = newService(url, e.wrap); err != nil {
				return nil, err
			}
		}
		counted := handler
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests[i].Add(1)
			counted.ServeHTTP(w, r)
		}))
		defer server.Close() // closes the connections to it as well
		url = server.URL
	}
	resp, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	_ = resp.Body.Close() // only the status counts
	for i := range requests {
		saw = append(saw, requests[i].Load())
	}
	if resp.StatusCode != e.status || !slices.Equal(saw, e.saw) {
		err = fmt.Errorf("%s: got status %d and %s requests, expected %d and %s",
			e.title, resp.StatusCode, arrows(saw), e.status, arrows(e.saw))
	}
	return saw, err
}

// arrows formats numbers as 1 → 3 → 9.
func arrows(numbers []int64) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(numbers), " ", " → "), "[]")
}
