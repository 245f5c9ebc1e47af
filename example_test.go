package httpretry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
	"github.com/seed421102f4/httpretry/strategies"
)

// unreliable returns a server that fails the first n requests.
func unreliable(n int) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n--; n >= 0 {
			w.Header().Set("Retry-After-Ms", "1")
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, "%s after %s retries", r.Method, r.Header.Get("Retry-Attempt"))
	}))
}

// show prints the result of a request.
func show(resp *http.Response, err error) {
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.TrimSpace(fmt.Sprintf("%d %s", resp.StatusCode, body)))
}

// showResult prints how a request ended.
func showResult(resp *http.Response, err error) {
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(httpretry.ResultOf(resp))
}

// A client needs one field to retry requests.
func Example() {
	srv := unreliable(2)
	defer srv.Close()

	client := &http.Client{Transport: new(httpretry.RetryTransport)}

	show(client.Get(srv.URL))
	// Output: 200 GET after 2 retries
}

// Each host can have its own policy. A request to any other host follows
// Config.Policy.
func ExampleNew_hosts() {
	transport, err := httpretry.New(httpretry.Config{
		Observe: httpretry.LogEvents(slog.Default()),
		Policies: map[string]httpretry.Policy{
			"api.stripe.com": policies.Stripe(),
			"*.example.com":  {MaxAttempts: 5, AttemptTimeout: 2 * time.Second}, // not example.com
			"127.0.0.1":      {Backoff: strategies.FullJitter{Base: 10 * time.Millisecond}},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	srv := unreliable(1)
	defer srv.Close()
	client := &http.Client{Transport: transport}

	show(client.Get(srv.URL))
	// Output: 200 GET after 1 retries
}

// New reports every invalid field of a Config.
func ExampleNew_errors() {
	_, err := httpretry.New(httpretry.Config{
		Policy:   httpretry.Policy{Backoff: strategies.Constant{Wait: -1}},
		Policies: map[string]httpretry.Policy{"a.test": {MaxElapsed: -time.Second}},
	})
	fmt.Println(strings.ReplaceAll(err.Error(), " want", "\n    want"))
	// Output:
	// httpretry: Config.Policy.Backoff: Constant.Wait: -1ns:
	//     want at least 1ms, or 0 for no wait
	// httpretry: Config.Policies["a.test"].MaxElapsed: -1s:
	//     want at least 1ms, or 0 for no limit
}

// A POST with an idempotency key is retried. Set the header yourself, or let
// the policy make a key.
func ExampleRandomKey() {
	srv := unreliable(1)
	defer srv.Close()

	transport, err := httpretry.New(httpretry.Config{
		Policy: httpretry.Policy{NewIdempotencyKey: httpretry.RandomKey},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	show(client.Post(srv.URL, "text/plain", strings.NewReader("charge 10")))
	// Output: 200 POST after 1 retries
}

// A context can change the policy of one request.
func ExampleWithPolicy() {
	srv := unreliable(1)
	defer srv.Close()
	client := &http.Client{Transport: new(httpretry.RetryTransport)}

	policy := httpretry.Policy{Backoff: strategies.Constant{Wait: time.Millisecond}}
	ctx := httpretry.WithPolicy(context.Background(), policy)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL, nil)
	if err != nil {
		log.Fatal(err)
	}

	show(client.Do(req))
	// Output: 200 GET after 1 retries
}

// A context can change some fields of the policy that a request's host has.
func ExampleWithPolicyFunc() {
	srv := unreliable(4)
	defer srv.Close()
	transport, err := httpretry.New(httpretry.Config{
		Policies: map[string]httpretry.Policy{
			"127.0.0.1": policies.Reads(httpretry.Policy{}, "/_search"),
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	patient := func(p httpretry.Policy) httpretry.Policy {
		p.MaxAttempts += 2 // to 5
		p.Backoff = strategies.Constant{Wait: time.Millisecond}
		return p
	}
	ctx := httpretry.WithPolicyFunc(context.Background(), patient)
	req, err := http.NewRequestWithContext(
		ctx, http.MethodPost, srv.URL+"/_search", strings.NewReader("query"))
	if err != nil {
		log.Fatal(err)
	}

	show(client.Do(req))
	// Output: 200 POST after 4 retries
}

// A context can also turn off the retries of one request.
func ExampleWithoutRetries() {
	srv := unreliable(1)
	defer srv.Close()
	client := &http.Client{Transport: new(httpretry.RetryTransport)}

	ctx := httpretry.WithoutRetries(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL, nil)
	if err != nil {
		log.Fatal(err)
	}

	show(client.Do(req))
	// Output: 503 try again
}

// A POST that only reads may be sent twice.
func ExampleWithIdempotent() {
	srv := unreliable(1)
	defer srv.Close()
	client := &http.Client{Transport: new(httpretry.RetryTransport)}

	ctx := httpretry.WithIdempotent(context.Background())
	req, err := http.NewRequestWithContext(
		ctx, http.MethodPost, srv.URL+"/_search", strings.NewReader("query"))
	if err != nil {
		log.Fatal(err)
	}

	show(client.Do(req))
	// Output: 200 POST after 1 retries
}

// A service answers 200, and says in the body that it failed.
func ExamplePeek() {
	policy := httpretry.Policy{ReadAhead: 4 << 10, Backoff: strategies.Constant{}}
	policy.Classify = func(
		req *http.Request, resp *http.Response, err error) httpretry.Outcome {
		if err == nil && bytes.Contains(httpretry.Peek(resp), []byte(`"error": "busy"`)) {
			return httpretry.Transient
		}
		return policy.Outcome(req, resp, err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Retry-Attempt") == "" {
			fmt.Fprint(w, `{"error": "busy"}`)
			return
		}
		fmt.Fprint(w, `{"result": 42}`)
	}))
	defer srv.Close()
	transport, err := httpretry.New(httpretry.Config{Policy: policy})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	show(client.Get(srv.URL))
	// Output: 200 {"result": 42}
}

// ResultOf returns how a request ended.
func ExampleResultOf() {
	srv := unreliable(1)
	defer srv.Close()
	client := &http.Client{Transport: new(httpretry.RetryTransport)}

	resp, err := client.Post(srv.URL, "text/plain", strings.NewReader("charge 10"))
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	result := httpretry.ResultOf(resp)
	fmt.Println(resp.Status, result.Attempts, result.Reason)
	// Output: 503 Service Unavailable 1 not_idempotent
}

// A POST of which nothing reached the server may be put back in a queue. Any
// other failed POST may have been processed.
func ExampleIsUnprocessed() {
	srv := unreliable(0)
	srv.Close() // so nothing listens
	transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{MaxAttempts: 1}})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	_, err = client.Post(srv.URL, "text/plain", strings.NewReader("charge 10"))
	fmt.Println(err != nil, httpretry.IsUnprocessed(err))
	// Output: true true
}

// Observe is called after each attempt.
func ExampleConfig_observe() {
	working := unreliable(1)
	defer working.Close()
	down := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler) // closes the connection
	}))
	defer down.Close()

	transport, err := httpretry.New(httpretry.Config{
		Policy: httpretry.Policy{
			MaxAttempts: 2, Backoff: strategies.Constant{Wait: time.Millisecond}},
		Observe: func(_ context.Context, e httpretry.Event) {
			fmt.Printf("attempt %d: %s, %v\n", e.Attempt.Number, e.Status(), e.Reason)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	show(client.Get(working.URL))
	_, err = client.Get(down.URL)
	fmt.Println(errors.Unwrap(err))
	// Output:
	// attempt 1: 503 Service Unavailable, none
	// attempt 2: 200 OK, success
	// 200 GET after 1 retries
	// attempt 1: connection broken, none
	// attempt 2: connection broken, attempts_exhausted
	// httpretry: gave up after 2 attempts (attempts_exhausted): EOF; hint: Policy.MaxAttempts allows no more attempts
}

// Several functions can observe the same transport.
func ExampleObservers() {
	srv := unreliable(2)
	defer srv.Close()

	var retries atomic.Int64 // because observers are called concurrently
	count := func(_ context.Context, e httpretry.Event) {
		if e.Reason == httpretry.ReasonNone {
			retries.Add(1)
		}
	}
	transport, err := httpretry.New(httpretry.Config{
		Observe: httpretry.Observers(httpretry.LogEvents(slog.Default()), count),
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	show(client.Get(srv.URL))
	fmt.Println("retries:", retries.Load())
	// Output:
	// 200 GET after 2 retries
	// retries: 2
}

// LogEvents logs to a slog.Logger.
func ExampleLogEvents() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "elapsed" || a.Key == "waited" {
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
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	_, err = client.Post(
		"http://user:secret@api.example.com/charge?token=secret", "text/plain", nil)
	fmt.Println(errors.Is(err, io.ErrUnexpectedEOF))
	// Output:
	// level=WARN msg="gave up on request" method=POST url=http://api.example.com/charge?REDACTED attempt=1 status="connection broken" error="unexpected EOF" hint="the server may have processed it; an Idempotency-Key header, Policy.NewIdempotencyKey or WithIdempotent allows a retry" reason=not_idempotent
	// true
}

// notThere is a base transport whose connection ends after the request was
// sent.
type notThere struct{}

func (notThere) RoundTrip(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }

// A Classify function can decide some cases and leave the others to the policy,
// whose IdempotencyHeader matters for a 409.
func ExamplePolicy_Outcome() {
	srv := unreliable(1)
	defer srv.Close()

	policy := httpretry.Policy{IdempotencyHeader: "X-Line-Retry-Key"}
	policy.Classify = func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
		if resp != nil && resp.StatusCode == http.StatusServiceUnavailable {
			return httpretry.Unprocessed // by the documentation of this API
		}
		return policy.Outcome(req, resp, err)
	}
	transport, err := httpretry.New(httpretry.Config{Policy: policy})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	show(client.Post(srv.URL, "text/plain", strings.NewReader("text")))
	// Output: 200 POST after 1 retries
}

// RetryAfter works without a RetryTransport, too.
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

// A base transport finds the attempt's number in the request's context.
func ExampleAttempt() {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Header.Get("X-Trace"))
		if r.Header.Get("X-Trace") == "attempt 1" {
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer srv.Close()
	transport, err := httpretry.New(httpretry.Config{
		Base:   tag{http.DefaultTransport},
		Policy: httpretry.Policy{Backoff: strategies.Constant{Wait: time.Millisecond}},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	show(client.Get(srv.URL))
	// Output:
	// attempt 1
	// attempt 2
	// 200
}

// tag is a base transport that adds a header to each attempt.
type tag struct{ next http.RoundTripper }

func (t tag) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("X-Trace", fmt.Sprintf("attempt %d", httpretry.Attempt(req.Context())))
	return t.next.RoundTrip(req)
}

// The edge and the shop make three attempts each. Without Middleware, the bank
// would get nine requests. With it, the shop sends one request for each retry
// of the edge.
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
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	shop := httptest.NewServer(
		httpretry.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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

	show(client.Get(shop.URL))
	fmt.Println("requests to the bank:", requests)
	// Output:
	// 503
	// requests to the bank: 5
}

// Wrap is a middleware as routers take it. The service's callers count their
// retries in a header of their own.
func ExampleMiddlewareConfig() {
	middleware := httpretry.MiddlewareConfig{Headers: []string{"X-Try"}}.Wrap

	down := unreliable(1000)
	defer down.Close()
	client := &http.Client{Transport: new(httpretry.RetryTransport)}
	handler := middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, down.URL, nil)
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
		fmt.Println(httpretry.ResultOf(resp))
	}))

	r := httptest.NewRequest(http.MethodGet, "/pay", nil)
	r.Header.Set("X-Try", "1")
	handler.ServeHTTP(httptest.NewRecorder(), r)
	// Output: {1 caller_retries false}
}

// With CooldownFail, requests to a host that asked for a wait fail at once.
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
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	for range 3 {
		resp, err := client.Get(srv.URL)
		switch cooling, ok := errors.AsType[*httpretry.CooldownError](err); {
		case ok:
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

// A layer that sends each request once is declared, so that the transport knows
// what sends its requests.
func ExampleThrough() {
	base := &http.Transport{MaxIdleConnsPerHost: 10}
	transport, err := httpretry.New(httpretry.Config{
		Base: httpretry.Through(tag{base}, base),
	})
	if err != nil {
		log.Fatal(err)
	}
	_, known := transport.Unwrap().(interface{ Unwrap() http.RoundTripper })
	fmt.Println(known)
	// Output: true
}

// A circuit breaker in Base returns an error with an Outcome, which determines
// whether the request is retried.
func ExampleWithOutcome() {
	transport, err := httpretry.New(httpretry.Config{Base: openBreaker{}})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	_, err = client.Get("https://api.example.com/")
	fmt.Println(err)
	// Output: Get "https://api.example.com/": circuit breaker is open
}

// openBreaker is a circuit breaker that is always open.
type openBreaker struct{}

func (openBreaker) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		req.Body.Close() // as a RoundTripper must
	}
	return nil, httpretry.WithOutcome(errors.New("circuit breaker is open"), httpretry.Final)
}

// With GetBody, each attempt opens the file again, and the progress starts
// again at 0.
func Example_uploadProgress() {
	srv := unreliable(1)
	defer srv.Close()
	info, err := os.Stat("LICENSE") // so short that one Read returns all of it
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: new(httpretry.RetryTransport)}

	open := func() (io.ReadCloser, error) {
		file, err := os.Open("LICENSE")
		return &progress{ReadCloser: file, size: info.Size()}, err
	}
	body, err := open()
	if err != nil {
		log.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPut, srv.URL, body)
	if err != nil {
		log.Fatal(err)
	}
	req.GetBody, req.ContentLength = open, info.Size()

	show(client.Do(req))
	// Output:
	// 100 %
	// 100 %
	// 200 PUT after 1 retries
}

// progress shows how much of a file was read.
type progress struct {
	io.ReadCloser
	sum, size int64
}

func (p *progress) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	if p.sum += int64(n); n > 0 {
		fmt.Println(p.sum*100/p.size, "%")
	}
	return n, err
}

// A download that breaks off fails while its body is read. The request has
// ended by then, so it is not retried.
func Example_brokenDownload() {
	requests := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, "the first part")
	}))
	defer srv.Close()
	client := &http.Client{Transport: new(httpretry.RetryTransport)}

	resp, err := client.Get(srv.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	fmt.Println(n, "of", resp.ContentLength, "bytes:", err)
	fmt.Println("requests:", requests)
	// Output:
	// 14 of 1000 bytes: unexpected EOF
	// requests: 1
}

// With Resume, a download that breaks off continues where it broke off.
func ExamplePolicy_resume() {
	file := strings.NewReader("the first part and the rest")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Printf(
			"request: Range %q, If-Range %q\n", r.Header.Get("Range"), r.Header.Get("If-Range"))
		w.Header().Set("ETag", `"v1"`)
		if r.Header.Get("Range") == "" {
			w.Header().Set("Content-Length", fmt.Sprint(file.Size()))
			fmt.Fprint(w, "the first part")
			return // the connection breaks
		}
		http.ServeContent(w, r, "", time.Time{}, file)
	}))
	defer srv.Close()
	transport, err := httpretry.New(httpretry.Config{
		Policy: httpretry.Policy{
			Resume: true, ResumeIdle: time.Minute, Backoff: strategies.Constant{}},
	})
	if err != nil {
		log.Fatal(err)
	}

	client := &http.Client{Transport: transport}
	show(client.Get(srv.URL))
	// Output:
	// request: Range "", If-Range ""
	// request: Range "bytes=14-26", If-Range "\"v1\""
	// 200 the first part and the rest
}

// README.md shows the client of a job.
func Example_job() {
	srv := unreliable(0)
	defer srv.Close()
	policy := policies.Background(time.Hour)
	policy.AttemptTimeout = time.Minute // for a server that does not answer
	transport, err := httpretry.New(httpretry.Config{Policy: policy})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	show(client.Get(srv.URL))
	// Output:
	// 200 GET after  retries
}

// A program that reads its configuration again keeps its transport.
func ExampleRetryTransport_SetPolicies() {
	srv := unreliable(2)
	defer srv.Close()
	transport := new(httpretry.RetryTransport)
	client := &http.Client{Transport: transport}

	for _, attempts := range []int{1, 2} {
		policy := httpretry.Policy{MaxAttempts: attempts, Backoff: strategies.Constant{}}
		if err := transport.SetPolicies(policy, nil); err != nil {
			log.Fatal(err)
		}
		show(client.Get(srv.URL))
	}
	// Output:
	// 503 try again
	// 200 GET after 1 retries
}

// Origins shows which hosts fail, and how many retries they have left.
func ExampleRetryTransport_Origins() {
	down := unreliable(1000)
	defer down.Close()
	transport, err := httpretry.New(httpretry.Config{
		Policy: httpretry.Policy{Backoff: strategies.Constant{}},
	})
	if err != nil {
		log.Fatal(err)
	}

	show((&http.Client{Transport: transport}).Get(down.URL))
	for _, o := range transport.Origins() {
		b := o.Budgets[0]
		fmt.Println(o.Origin == down.URL, "last:", o.LastFailure)
		fmt.Println("failed retries:", b.FailedRetries, "left:", b.Balance)
	}
	// Output:
	// 503 try again
	// true last: 503 Service Unavailable
	// failed retries: 2 left: 3
}

// A number without a unit is a number of nanoseconds.
func ExamplePolicy_Validate() {
	fmt.Println(httpretry.Policy{AttemptTimeout: 5, MaxAttempts: 4}.Validate())
	// Output:
	// httpretry: Policy.AttemptTimeout: 5ns: want at least 1ms, or 0 for no timeout
}

// An *Error has the number of attempts, and the error of the last one.
func ExampleError() {
	transport, err := httpretry.New(httpretry.Config{
		Base:   notThere{},
		Policy: httpretry.Policy{Backoff: strategies.Constant{}},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	_, err = client.Get("http://api.example.com/")
	if e, ok := errors.AsType[*httpretry.Error](err); ok {
		fmt.Println("attempts:", e.Attempts)
		fmt.Println("reason:", e.Reason)
		fmt.Println("error:", e.Err)
	}
	// Output:
	// attempts: 3
	// reason: attempts_exhausted
	// error: unexpected EOF
}

// Status returns few different texts, and none that a server has sent, so they
// can be labels of metrics.
func ExampleEvent_Status() {
	for _, e := range []httpretry.Event{
		{Response: &http.Response{StatusCode: 503, Status: "503 a text of the server"}},
		{Err: &net.DNSError{Name: "api.example.com", IsNotFound: true}},
		{Err: context.DeadlineExceeded},
		{Err: io.ErrUnexpectedEOF},
	} {
		fmt.Println(e.Status())
	}
	// Output:
	// 503 Service Unavailable
	// name lookup failed
	// timeout
	// connection broken
}

func ExampleClassify() {
	req := httptest.NewRequest(http.MethodGet, "http://api.example.com/", nil)
	for _, status := range []int{200, 404, 425, 429, 503} {
		resp := &http.Response{StatusCode: status}
		fmt.Println(status, httpretry.Classify(req, resp, nil))
	}
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	fmt.Println(refused, httpretry.Classify(req, nil, refused))
	fmt.Println(io.EOF, httpretry.Classify(req, nil, io.EOF))
	// Output:
	// 200 final
	// 404 final
	// 425 unprocessed
	// 429 transient
	// 503 transient
	// dial: connection refused unprocessed
	// EOF transient
}

func ExampleIdempotent() {
	get := httptest.NewRequest(http.MethodGet, "http://api.example.com/", nil)
	fmt.Println("GET:", httpretry.Idempotent(get))

	post := httptest.NewRequest(http.MethodPost, "http://api.example.com/", nil)
	fmt.Println("POST:", httpretry.Idempotent(post))
	post.Header.Set("Idempotency-Key", "order-17")
	fmt.Println("POST with a key:", httpretry.Idempotent(post))
	// Output:
	// GET: true
	// POST: false
	// POST with a key: true
}

func ExampleOrigin() {
	for _, text := range []string{"https://API.example.com/v1?q", "http://127.0.0.1:8080/"} {
		u, err := url.Parse(text)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(httpretry.Origin(u))
	}
	// Output:
	// https://api.example.com
	// http://127.0.0.1:8080
}

// Several transports can share a HostBudget. A host that is down gets two
// failed retries from both of them together.
func ExampleHostBudget() {
	down := unreliable(1000)
	defer down.Close()
	budget := &httpretry.HostBudget{Burst: 2}
	config := httpretry.Config{Policy: httpretry.Policy{
		MaxAttempts: -1, Budget: budget, Backoff: strategies.Constant{}}}

	for range 2 {
		transport, err := httpretry.New(config)
		if err != nil {
			log.Fatal(err)
		}
		showResult((&http.Client{Transport: transport}).Get(down.URL))
		retries, _ := budget.Balance(down.URL) // as from Origin
		fmt.Println("retries left:", retries)
	}
	// Output:
	// {3 budget_exhausted false}
	// retries left: 0
	// {1 budget_exhausted false}
	// retries left: 0
}

// Without a budget, MaxAttempts alone limits the load on a host that is down.
func ExampleUnlimited() {
	down := unreliable(1000)
	defer down.Close()
	transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
		MaxAttempts: 10, Budget: httpretry.Unlimited{}, Backoff: strategies.Constant{}}})
	if err != nil {
		log.Fatal(err)
	}
	showResult((&http.Client{Transport: transport}).Get(down.URL))
	// Output:
	// {10 attempts_exhausted false}
}

// switched is a budget that allows no retries while it is off.
type switched struct {
	httpretry.HostBudget
	off atomic.Bool
}

func (s *switched) Withdraw(ctx context.Context, last httpretry.AttemptResult) bool {
	return !s.off.Load() && s.HostBudget.Withdraw(ctx, last)
}

// A budget can contain another one, here so that an operator can turn off all
// retries.
func ExampleBudget() {
	down := unreliable(1000)
	defer down.Close()
	budget := new(switched)
	transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
		Budget: budget, Backoff: strategies.Constant{}}})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	for _, off := range []bool{false, true} {
		budget.off.Store(off)
		showResult(client.Get(down.URL))
	}
	// Output:
	// {3 attempts_exhausted false}
	// {1 budget_exhausted false}
}

// The server limits each user. With a CooldownKey, the limit of one does not
// delay the requests of another.
func ExampleCooldown() {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, _, _ := r.BasicAuth(); user == "ann" {
			w.Header().Set("Retry-After", "120")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer srv.Close()
	transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
		Cooldown:    httpretry.CooldownFail,
		CooldownKey: func(r *http.Request) string { return r.Header.Get("Authorization") },
	}})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	for _, user := range []string{"ann", "ann", "bob"} {
		req, err := http.NewRequest(http.MethodGet, srv.URL, nil)
		if err != nil {
			log.Fatal(err)
		}
		req.SetBasicAuth(user, "secret")
		resp, err := client.Do(req)
		if _, ok := errors.AsType[*httpretry.CooldownError](err); ok {
			fmt.Println(user, "has to wait")
			continue
		} else if err != nil {
			log.Fatal(err)
		}
		fmt.Println(user, resp.Status)
		_ = resp.Body.Close()
	}
	// Output:
	// ann 429 Too Many Requests
	// ann has to wait
	// bob 200 OK
}
