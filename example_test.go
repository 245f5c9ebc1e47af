package httpretry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// unreliable is a server that fails the first n requests.
func unreliable(n int) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n--; n >= 0 {
			w.Header().Set("Retry-After-Ms", "1")
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, "%s after %s retries", r.Method, r.Header.Get(httpretry.DefaultAttemptHeader))
	}))
}

func show(resp *http.Response, err error) {
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(resp.StatusCode, strings.TrimSpace(string(body)))
}

// One field of the client is all there is to set.
func Example() {
	srv := unreliable(2)
	defer srv.Close()

	client := &http.Client{Transport: new(httpretry.RetryTransport)}

	show(client.Get(srv.URL))
	// Output: 200 GET after 2 retries
}

// Each host can have a policy of its own.
func ExampleNew_hosts() {
	srv := unreliable(1)
	defer srv.Close()

	transport, err := httpretry.New(httpretry.Config{
		Policy: httpretry.Policy{MaxAttempts: 2},
		Hosts: map[string]httpretry.Policy{
			"127.0.0.1":     {Backoff: strategies.FullJitter{Base: 10 * time.Millisecond, Max: time.Second}},
			"*.example.com": {MaxAttempts: 5, AttemptTimeout: 2 * time.Second},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}

	show(client.Get(srv.URL))
	// Output: 200 GET after 1 retries
}

// All that is wrong with a Config is reported at once.
func ExampleNew_errors() {
	_, err := httpretry.New(httpretry.Config{
		Policy: httpretry.Policy{MaxAttempts: -1, Backoff: strategies.FullJitter{Base: time.Minute}},
		Hosts:  map[string]httpretry.Policy{"a.test": {MaxElapsed: -time.Second}},
	})
	fmt.Println(err)
	// Output:
	// httpretry: Config.Policy.MaxAttempts: -1 is negative
	// httpretry: Config.Policy.Backoff: FullJitter.Max: 30s (the default) is below Base (1m0s)
	// httpretry: Config.Hosts["a.test"].MaxElapsed: -1s is negative
}

// A POST is repeated only with a key by which its server recognises it. Set
// the header yourself, or let the policy make one.
func ExampleRandomKey() {
	srv := unreliable(1)
	defer srv.Close()

	transport, err := httpretry.New(httpretry.Config{
		Policy: httpretry.Policy{NewKey: httpretry.RandomKey},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}

	show(client.Post(srv.URL, "text/plain", strings.NewReader("charge 10")))
	// Output: 200 POST after 1 retries
}

// One request can have a policy of its own, such as none at all.
func ExampleWithPolicy() {
	srv := unreliable(1)
	defer srv.Close()
	client := &http.Client{Transport: new(httpretry.RetryTransport)}

	ctx := httpretry.WithPolicy(context.Background(), httpretry.Policy{MaxAttempts: 1})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL, nil)
	if err != nil {
		fmt.Println(err)
		return
	}

	show(client.Do(req))
	// Output: 503 try again
}

// An observer sees each attempt and what was decided after it.
func ExampleConfig_observe() {
	srv := unreliable(1)
	defer srv.Close()

	transport, err := httpretry.New(httpretry.Config{
		Observe: func(_ context.Context, e httpretry.Event) {
			if e.Reason == 0 {
				fmt.Printf("attempt %d: status %d, another follows\n", e.Attempt, e.Response.StatusCode)
			} else {
				fmt.Printf("attempt %d: status %d, %v\n", e.Attempt, e.Response.StatusCode, e.Reason)
			}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}

	show(client.Get(srv.URL))
	// Output:
	// attempt 1: status 503, another follows
	// attempt 2: status 200, final
	// 200 GET after 1 retries
}

// LogEvents is an observer that writes to a slog.Logger.
func ExampleLogEvents() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "elapsed" {
				return slog.Attr{} // they differ from run to run
			}
			return a
		},
	}))
	transport, err := httpretry.New(httpretry.Config{
		Base:    notThere{},
		Observe: httpretry.LogEvents(logger),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}

	_, err = client.Post("http://user:secret@api.example.com/charge?token=secret", "text/plain", nil)
	fmt.Println(errors.Is(err, io.ErrUnexpectedEOF))
	// Output:
	// level=WARN msg="gave up on request" method=POST url=http://api.example.com/charge?REDACTED attempt=1 error="unexpected EOF" reason="not idempotent"
	// true
}

// notThere is a base whose connection ends after the request was sent.
type notThere struct{}

func (notThere) RoundTrip(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }

// A strategy is a function of the retry's number.
func ExamplePolicy_backoff() {
	srv := unreliable(2)
	defer srv.Close()

	waits := strategies.Func(func(retry int) time.Duration {
		return time.Duration(retry+1) * 5 * time.Millisecond
	})
	transport, err := httpretry.New(httpretry.Config{
		Policy: httpretry.Policy{Backoff: strategies.Spread{Of: waits, Fraction: 0.2}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}

	show(client.Get(srv.URL))
	// Output: 200 GET after 2 retries
}

// A policy's own classification adds to the default one.
func ExamplePolicy_classify() {
	srv := unreliable(1)
	defer srv.Close()

	transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
		Classify: func(resp *http.Response, err error) httpretry.Outcome {
			if resp != nil && resp.StatusCode == http.StatusServiceUnavailable {
				return httpretry.Unprocessed // of this server we know that it does nothing before it says so
			}
			return httpretry.Classify(resp, err)
		},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}

	show(client.Post(srv.URL, "text/plain", strings.NewReader("text")))
	// Output: 200 POST after 1 retries
}

// What a server asks for can be had without a transport, too.
func ExampleRetryAfter() {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, value := range []string{"120", "Sat, 21 Nov 2026 12:01:00 GMT", "soon"} {
		wait, ok := httpretry.RetryAfter(http.Header{"Retry-After": {value}}, now)
		fmt.Println(wait, ok)
	}
	// Output:
	// 2m0s true
	// 1m0s true
	// 0s false
}

// The attempt's number is in the context of what the base is given.
func ExampleAttempt() {
	base := tag{http.DefaultTransport}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Header.Get("X-Trace"))
		if r.Header.Get("X-Trace") == "attempt 1" {
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer srv.Close()
	transport, err := httpretry.New(httpretry.Config{
		Base:   base,
		Policy: httpretry.Policy{Backoff: strategies.Constant{Wait: time.Millisecond}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}

	show(client.Get(srv.URL))
	// Output:
	// attempt 1
	// attempt 2
	// 200
}

// tag is a base that marks each attempt.
type tag struct{ next http.RoundTripper }

func (t tag) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("X-Trace", fmt.Sprintf("attempt %d", httpretry.Attempt(req.Context())))
	return t.next.RoundTrip(req)
}

// Services that call one another do not multiply their retries: the shop makes
// three attempts, and the edge none beyond its first.
func ExampleMiddleware() {
	requests := 0
	bank := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		http.Error(w, "down", http.StatusServiceUnavailable)
	}))
	defer bank.Close()
	transport, err := httpretry.New(httpretry.Config{
		Policy: httpretry.Policy{Backoff: strategies.Constant{Wait: time.Millisecond}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}

	shop := httptest.NewServer(httpretry.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, bank.URL, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		resp, err := client.Do(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		w.WriteHeader(resp.StatusCode)
	})))
	defer shop.Close()

	resp, err := client.Get(shop.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, "X-Should-Retry:", resp.Header.Get("X-Should-Retry"))
	fmt.Println("requests to the bank:", requests)
	// Output:
	// 503 X-Should-Retry: false
	// requests to the bank: 3
}

// A host that asked for a minute's rest is not asked again meanwhile, by any
// request.
func ExampleCooldownError() {
	requests := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.Header().Set("Retry-After", "120")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer srv.Close()
	transport, err := httpretry.New(httpretry.Config{
		Policy: httpretry.Policy{Cooldown: httpretry.CooldownFail},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}

	for range 3 {
		resp, err := client.Get(srv.URL)
		var cooling *httpretry.CooldownError
		switch {
		case errors.As(err, &cooling):
			fmt.Println("not sent, for", time.Until(cooling.Until).Round(time.Minute))
		case err != nil:
			fmt.Println(err)
		default:
			fmt.Println(resp.Status)
			_ = resp.Body.Close()
		}
	}
	fmt.Println("requests:", requests)
	// Output:
	// 429 Too Many Requests
	// not sent, for 2m0s
	// not sent, for 2m0s
	// requests: 1
}
