package retrytest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/errno"
	"github.com/seed421102f4/httpretry/retrytest"
	"github.com/seed421102f4/httpretry/strategies"
)

// recorder is a test whose failures do not fail the test that makes it.
type recorder struct {
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// end ends the test of r and returns its failures.
func (r *recorder) end() string {
	for _, f := range r.cleanups {
		f()
	}
	return strings.Join(r.failures, "\n")
}

// request returns a request to a.test.
func request(t *testing.T, method, body string) *http.Request {
	return contract.Request(t, method, "http://a.test/", body)
}

// send sends a request through a RetryTransport and returns the status, or 0
// for an error.
func send(
	t *testing.T, base http.RoundTripper, policy httpretry.Policy, req *http.Request,
) (int, error) {
	t.Helper()
	policy.Backoff = strategies.Constant{Wait: time.Second}
	transport, err := httpretry.New(httpretry.Config{Base: base, Policy: policy})
	require.NoError(t, err)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, nil
}

// Steps are played in order, once each. The Script records the requests.
func TestSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := retrytest.Base(t,
			retrytest.Status(503, "X-Should-Retry", "true"),
			retrytest.RetryAfter("5"),
			retrytest.Step{Status: 503, Takes: 3 * time.Second},
			retrytest.Reset(),
			retrytest.Hang(),
			retrytest.Step{},
		)
		req := contract.Request(t, "PUT", "http://a.test/path?query", "text")
		req.Header.Set("X-Name", "value")
		policy := httpretry.Policy{MaxAttempts: 6, AttemptTimeout: time.Minute,
			Budget: httpretry.Unlimited{}}
		status, err := send(t, base, policy, req)
		require.NoError(t, err)
		assert.Equal(t, 200, status)

		waits := base.Waits()
		require.Len(t, waits, 5)
		// The wait that a server asks for is spread.
		assert.GreaterOrEqual(t, waits[1], 5*time.Second)
		waits[1] = 0
		assert.Equal(t, []time.Duration{time.Second, 0, 4 * time.Second, time.Second,
			time.Minute + time.Second}, waits)
		for i, sent := range base.Attempts() {
			assert.Equal(t, []any{"PUT", "http://a.test/path?query", "text", "value", i + 1},
				[]any{sent.Method, sent.URL, sent.Body, sent.Header.Get("X-Name"), sent.Attempt})
			assert.Equal(t, "a.test", sent.Request.URL.Host)
		}
		assert.Zero(t, base.Attempts()[0].At)
		assert.Equal(t, waits[0], base.Attempts()[1].At)
	})
}

// The Outcomes of errors do not depend on whether the request has a body.
func TestErrorSteps(t *testing.T) {
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		step      retrytest.Step
		get, post int // attempts
		want      error
	}{
		"Reset":   {retrytest.Reset(), 3, 1, errno.ConnReset},
		"Refused": {retrytest.Refused(), 3, 3, errno.ConnRefused},
		"Hang":    {retrytest.Hang(), 3, 1, context.DeadlineExceeded},
		"Fails":   {retrytest.Fails(boom), 3, 1, boom},
		"Fails, with an Outcome": {
			retrytest.Fails(httpretry.WithOutcome(boom, httpretry.Final)), 1, 1, boom},
		"Func": {retrytest.Func(func(*http.Request) (*http.Response, error) { return nil, boom }),
			3, 1, boom},
	} {
		for _, body := range []string{"", "text"} {
			for method, want := range map[string]int{"GET": tt.get, "POST": tt.post} {
				test := fmt.Sprintf("%s/%s/%q", name, method, body)
				contract.Bubble(t, test, func(t *testing.T) {
					base := retrytest.Base(t, retrytest.Always(tt.step))
					policy := httpretry.Policy{AttemptTimeout: time.Minute}
					_, err := send(t, base, policy, request(t, method, body))
					require.ErrorIs(t, err, tt.want)
					assert.Len(t, base.Attempts(), want)
				})
			}
		}
	}
}

// The test fails if there are more requests than steps, or fewer. A request
// without a step gets an error that is not retried. Once the test has ended, the
// Script does not use it, because that would panic.
func TestNumberOfRequests(t *testing.T) {
	s200, s503 := retrytest.Status(200), retrytest.Status(503)
	for name, tt := range map[string]struct {
		steps    []retrytest.Step
		requests int
		attempts int
		want     string
	}{
		"as many":      {[]retrytest.Step{s503, s200, s200}, 2, 3, ""},
		"none":         {nil, 0, 0, ""},
		"too many":     {[]retrytest.Step{s200}, 2, 2, "request 2, GET http://a.test/, has no step"},
		"a retry":      {[]retrytest.Step{s503}, 1, 2, "request 2, GET http://a.test/, has no step"},
		"without any":  {nil, 1, 1, "request 1, GET http://a.test/, has no step"},
		"too few":      {[]retrytest.Step{s200, s200, s200}, 1, 1, "2 of 3 steps were not played"},
		"Always":       {[]retrytest.Step{s503, retrytest.Always(s200)}, 3, 4, ""},
		"Always, once": {[]retrytest.Step{s503, retrytest.Always(s200)}, 1, 2, ""},
		"Always, not":  {[]retrytest.Step{s200, retrytest.Always(s503)}, 1, 1, ""},
		"before Always": {[]retrytest.Step{s200, s503, retrytest.Always(s200)}, 1, 1,
			"2 of 3 steps were not played"},
		"after Always": {[]retrytest.Step{retrytest.Always(s200), s200}, 2, 2,
			"step 1 is of Always, so the steps after it are never played"},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			rec := new(recorder)
			base := retrytest.Base(rec, tt.steps...)
			for range tt.requests {
				status, err := send(t, base, httpretry.Policy{}, request(t, "GET", ""))
				if err != nil {
					require.ErrorContains(t, err, tt.want)
				} else {
					assert.Equal(t, 200, status)
				}
			}
			assert.Len(t, base.Attempts(), tt.attempts)
			failures := rec.end()
			if tt.want == "" {
				assert.Empty(t, failures)
			} else {
				assert.Equal(t, "retrytest: "+tt.want, failures)
			}
			rec.cleanups = nil
			_, _ = send(t, base, httpretry.Policy{}, request(t, "GET", ""))
			assert.Equal(t, failures, rec.end())
		})
	}
}

// body is a request body that records its use.
type body struct {
	io.Reader
	closes int
	err    error // of Close
}

func (b *body) Close() error {
	b.closes++
	return b.err
}

// The body of a request is read, unless the step says otherwise, and closed
// once, whatever the step does.
func TestRequestBodies(t *testing.T) {
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		steps    []retrytest.Step
		body     body
		sent     string
		want     error
		failures bool
	}{
		"read":    {steps: []retrytest.Step{{}}, sent: "text"},
		"Unread":  {steps: []retrytest.Step{{Unread: true}}},
		"error":   {steps: []retrytest.Step{{Err: boom}}, sent: "text", want: boom},
		"no step": {failures: true},
		"its Read fails": {steps: []retrytest.Step{{}},
			body: body{Reader: io.MultiReader(strings.NewReader("te"), iotest.ErrReader(boom))},
			sent: "te", want: boom},
		"its Close fails": {steps: []retrytest.Step{{}}, body: body{err: boom},
			sent: "text", want: boom},
		"its Close fails, Unread": {steps: []retrytest.Step{{Unread: true}},
			body: body{err: boom}, want: boom},
	} {
		t.Run(name, func(t *testing.T) {
			rec := new(recorder)
			base := retrytest.Base(rec, tt.steps...)
			if tt.body.Reader == nil {
				tt.body.Reader = strings.NewReader("text")
			}
			resp, err := base.RoundTrip(contract.Streamed(t, "POST", "http://a.test/", &tt.body))
			assert.Equal(t, 1, tt.body.closes)
			assert.Equal(t, tt.sent, base.Attempts()[0].Body)
			if tt.failures {
				require.Error(t, err)
			} else {
				require.ErrorIs(t, err, tt.want)
			}
			assert.Equal(t, err == nil, resp != nil)
			assert.Equal(t, tt.failures, rec.end() != "")
		})
	}
}

// Func gets the request with a body that it can read. Its response may have
// no body and no request. Func takes precedence over the other fields that make
// an answer.
func TestFunc(t *testing.T) {
	echo := func(req *http.Request) (*http.Response, error) {
		if req.Body == nil {
			return &http.Response{StatusCode: 204}, nil
		}
		return &http.Response{StatusCode: 201, Body: req.Body}, nil
	}
	step := retrytest.Step{Status: 404, Body: "none", Err: errors.New("boom"), Func: echo}
	base := retrytest.Base(t, step, step)
	for text, want := range map[string]int{"text": 201, "": 204} {
		req := request(t, "PUT", text)
		resp, err := base.RoundTrip(req)
		require.NoError(t, err)
		assert.Same(t, req, resp.Request)
		assert.Equal(t, want, resp.StatusCode)
		assert.Equal(t, text, contract.ReadBody(t, resp))
	}
}

// A response looks like one of net/http, and shares nothing with its step.
func TestResponses(t *testing.T) {
	s404 := retrytest.Step{Status: 404, Header: http.Header{"A": {"b"}}, Body: "none"}
	base := retrytest.Base(t, retrytest.Always(s404))
	for range 2 {
		req := request(t, "GET", "")
		resp, err := base.RoundTrip(req)
		require.NoError(t, err)
		assert.Equal(t, "404 Not Found", resp.Status)
		assert.Equal(t, http.Header{"A": {"b"}}, resp.Header)
		assert.EqualValues(t, 4, resp.ContentLength)
		assert.Same(t, req, resp.Request)
		resp.Header.Set("A", "changed")
		assert.Equal(t, "none", contract.ReadBody(t, resp))
	}
	resp := contract.Send(t, retrytest.Base(t, retrytest.Step{}), &http.Request{})
	assert.NotNil(t, resp.Header)
	assert.Equal(t, "200 OK", resp.Status)
}

// A mistake in a step fails the test where the step is made.
func TestInvalidSteps(t *testing.T) {
	odd := []string{"A", "b", "C"}
	assert.PanicsWithValue(t, `retrytest: Status: header "C" has no value`,
		func() { retrytest.Status(200, odd...) })
	var missing error
	assert.PanicsWithValue(t, "retrytest: Fails: nil error", func() { retrytest.Fails(missing) })
	assert.PanicsWithValue(t, "retrytest: Func: nil function", func() { retrytest.Func(nil) })
}

// A response that cannot have a body has none, as one of net/http's server and
// Transport.
func TestResponsesWithoutBody(t *testing.T) {
	for _, status := range []int{200, 204, 304, 404} {
		for _, method := range []string{"GET", "HEAD"} {
			srv := contract.NewServer(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "text") // fails if there cannot be a body
			})
			req := contract.Request(t, method, srv.URL, "")
			want, err := srv.Client().Transport.RoundTrip(req)
			require.NoError(t, err)
			base := retrytest.Base(t, retrytest.Step{Status: status, Body: "text"})
			got, err := base.RoundTrip(req)
			require.NoError(t, err)
			test := fmt.Sprintf("%s, %d", method, status)
			assert.Equal(t, contract.ReadBody(t, want), contract.ReadBody(t, got), test)
			assert.Equal(t, want.Body == http.NoBody, got.Body == http.NoBody, test)
			assert.Equal(t, want.ContentLength, got.ContentLength, test)
		}
	}
}

// The records of a Script do not change with the request, or with an earlier
// result of Attempts.
func TestRecordsAreCopies(t *testing.T) {
	base := retrytest.Base(t, retrytest.Status(200))
	req := request(t, "GET", "")
	req.Header.Set("X-Name", "value")
	_, err := base.RoundTrip(req)
	require.NoError(t, err)
	req.Header.Set("X-Name", "changed")
	req.URL.Host = "b.test"
	sent := base.Attempts()
	assert.Equal(t, http.Header{"X-Name": {"value"}}, sent[0].Header)
	assert.Equal(t, "http://a.test/", sent[0].URL)
	sent[0].URL = "changed"
	assert.Equal(t, "http://a.test/", base.Attempts()[0].URL)
}

// A delay and Hang end with the request's context, with its cause.
func TestContexts(t *testing.T) {
	boom := errors.New("boom")
	for name, step := range map[string]retrytest.Step{
		"Hang": retrytest.Hang(), "Takes": {Takes: time.Hour}} {
		contract.Bubble(t, name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Minute, func() { cancel(boom) })
			start := time.Now()
			_, err := retrytest.Base(t, step).RoundTrip(request(t, "GET", "").WithContext(ctx))
			assert.Equal(t, boom, err)
			assert.Equal(t, time.Minute, time.Since(start))
		})
	}
}

// Requests may be sent by several goroutines.
func TestConcurrentRequests(t *testing.T) {
	const n = 50
	steps := make([]retrytest.Step, n)
	for i := range steps {
		steps[i].Status = 200 + i
	}
	rec := new(recorder)
	base := retrytest.Base(rec, steps...)
	var mu sync.Mutex
	seen := map[int]int{}
	var wg sync.WaitGroup
	for range n + 1 {
		wg.Go(func() {
			status, _ := send(t, base, httpretry.Policy{}, request(t, "PUT", "text"))
			mu.Lock()
			defer mu.Unlock()
			seen[status]++
		})
	}
	wg.Wait()
	assert.Len(t, seen, n+1, "each step once, and an error")
	assert.Contains(t, rec.end(), "has no step")
	for _, sent := range base.Attempts()[:n] {
		assert.Equal(t, "text", sent.Body)
	}
}

// This is the test in the documentation of the package.
func TestFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := retrytest.Base(t,
			retrytest.RetryAfter("2"),
			retrytest.Reset(),
			retrytest.Status(200),
		)
		transport, err := httpretry.New(httpretry.Config{Base: base})
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: transport}
		resp, err := client.Get("https://api.example.com/") // or your code
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if wait := base.Waits()[0]; wait < 2*time.Second {
			t.Errorf("waited %v, but the server has asked for 2s", wait)
		}
	})
}

// The documentation of the package shows TestFetch as it is.
func TestDocumentation(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	var code strings.Builder
	for line := range strings.Lines(string(doc)) {
		if text, ok := strings.CutPrefix(line, "//\t"); ok {
			code.WriteString(text)
		}
	}
	tests, err := os.ReadFile("retrytest_test.go")
	require.NoError(t, err)
	require.NotEmpty(t, code.String())
	assert.Contains(t, string(tests), code.String())
}

// T is satisfied by all kinds of tests.
var _ = []retrytest.T{new(testing.T), new(testing.B), new(testing.F), testing.TB(nil)}
