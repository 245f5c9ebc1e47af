package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
)

// experiment is one request to a chain of services, and what is expected of it.
type experiment struct {
	title      string
	middleware layer
	failures   int64   // of the bottom, before it answers 200
	status     int     // of the answer at the top
	saw        []int64 // requests: the first service, ..., the last one, the bottom
}

func outages() []experiment {
	const always = math.MaxInt64
	return []experiment{
		{"before: no Middleware", without, always, 502, []int64{1, 3, 9, 27}},
		{"Middleware, behind proxies", behindProxy, always, 502, []int64{1, 3, 5, 7}},
		{"after: Middleware", with, always, 502, []int64{1, 1, 1, 3}},

		{"before: no Middleware", without, always, 502, []int64{1, 3, 9, 27, 81, 243}},
		{"Middleware, behind proxies", behindProxy, always, 502, []int64{1, 3, 5, 7, 9, 11}},
		{"after: Middleware", with, always, 502, []int64{1, 1, 1, 1, 1, 3}},
	}
}

// recoveries are the control: fewer retries must not mean fewer successes.
func recoveries() []experiment {
	return []experiment{
		{"without Middleware", without, 1, 200, []int64{1, 1, 1, 2}},
		{"with it", with, 1, 200, []int64{1, 1, 1, 2}},
	}
}

const intro = `One request comes in at the top, from a client that does not retry. Each service makes up to
3 attempts to reach the next one. The server at the bottom is down: it always answers 503.

                               AT THE BOTTOM   REQUESTS THAT EACH SERVER SAW, FROM THE TOP
`

const outro = `
Why they add up: a request that is itself a retry says so (Retry-Attempt), and what a service
sends on its behalf is sent once. And a service that gave up says so in its answer
(X-Should-Retry: false), so nobody above it starts over. Behind proxies that drop this header
only the first half works.

`

// show makes the experiments and prints what the servers saw.
func show(ctx context.Context, stdout io.Writer, outages, recoveries []experiment) error {
	fmt.Fprint(stdout, intro)
	services := 0
	for _, e := range outages {
		_, saw, err := e.make(ctx)
		if err != nil {
			return err
		}
		if e.services() != services {
			services = e.services()
			fmt.Fprintf(stdout, "%d services\n", services)
		}
		fmt.Fprintf(stdout, "  %-28s %10d      %s\n", e.title, saw[services], arrows(saw))
	}

	var parts []string
	for _, e := range recoveries {
		status, saw, err := e.make(ctx)
		if err != nil {
			return err
		}
		parts = append(parts, fmt.Sprintf("%d after %d calls %s", status, saw[e.services()], e.title))
	}
	fmt.Fprintf(stdout, "%sIf the bottom fails only once: %s.\n", outro, strings.Join(parts, ", "))
	return nil
}

func (e experiment) services() int { return len(e.saw) - 1 }

// make sends the request. It returns the status of the answer at the top and
// what each of the servers counted, and an error if that is not as expected.
func (e experiment) make(ctx context.Context) (status int, saw []int64, err error) {
	requests := make([]atomic.Int64, len(e.saw))
	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests[e.services()].Load() <= e.failures {
			http.Error(w, "down", http.StatusServiceUnavailable)
		}
	}))
	var top *httptest.Server
	for i := range slices.Backward(requests) { // from the bottom to the top
		if top != nil {
			if handler, err = newService(top.URL, e.middleware); err != nil {
				return 0, nil, err
			}
		}
		top = httptest.NewServer(counting(&requests[i], handler))
		defer top.Close() // and with it the connections to it
	}

	if status, err = get(ctx, top.URL); err != nil {
		return 0, nil, err
	}
	for i := range requests {
		saw = append(saw, requests[i].Load())
	}
	if status != e.status || !slices.Equal(saw, e.saw) {
		err = fmt.Errorf("%d services, %s: the answer was %d and the servers saw %s requests, expected %d and %s",
			e.services(), e.title, status, arrows(saw), e.status, arrows(e.saw))
	}
	return status, saw, err
}

// get sends one request, without retries, and returns the answer's status.
func get(ctx context.Context, url string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func counting(requests *atomic.Int64, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		handler.ServeHTTP(w, r)
	})
}

// behindProxy is a service with Middleware, and a proxy before it that drops a
// header, so that the services above do not hear that this one gave up.
func behindProxy(handler http.Handler) http.Handler {
	service := with(handler)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { service.ServeHTTP(proxy{w}, r) })
}

type proxy struct{ http.ResponseWriter }

func (p proxy) WriteHeader(status int) {
	p.Header().Del("X-Should-Retry")
	p.ResponseWriter.WriteHeader(status)
}

// arrows shows numbers as 1 → 3 → 9.
func arrows(numbers []int64) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(numbers), " ", " → "), "[]")
}
