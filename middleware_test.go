package httpretry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/errno"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/strategies"
)

// immediateRetries returns a policy of n attempts without waits.
func immediateRetries(n int) httpretry.Policy {
	return httpretry.Policy{
		MaxAttempts: n, Backoff: strategies.Constant{}, Budget: httpretry.Unlimited{}}
}

// outboundCall is a request that a handler sends, and its result.
type outboundCall struct {
	cfg    httpretry.Config
	method string // "" is GET
	key    string // Idempotency-Key
	base   *contract.Script
	contract.Record
	err error
}

// send sends a request with ctx. If cfg has no Base, the base plays steps. If its
// Policy has no Backoff, the request has three attempts.
func (c *outboundCall) send(t testing.TB, ctx context.Context, steps ...contract.Step) {
	if c.base = contract.Play(steps...); c.cfg.Base == nil {
		c.cfg.Base = c.base
	}
	if c.cfg.Policy.Backoff == nil {
		c.cfg.Policy = immediateRetries(3)
	}
	c.cfg.Observe = c.Observe
	req := contract.Request(t, c.method, "http://a.test/path", "").WithContext(ctx)
	if c.key != "" {
		req.Header.Set("Idempotency-Key", c.key)
	}
	c.err = exchange(t, contract.New(t, c.cfg), req)
}

// handle sends a request on behalf of an inbound one.
func (c *outboundCall) handle(t testing.TB, inboundRetry string, steps ...contract.Step) {
	receive(t.Context(), inboundRetry,
		func(r *http.Request) { c.send(t, r.Context(), steps...) })
}

// receive calls handle, inside Middleware, for an inbound request whose attempt
// header is retry.
func receive(ctx context.Context, retry string, handle func(*http.Request)) {
	handler := func(_ http.ResponseWriter, r *http.Request) { handle(r) }
	httpretry.Middleware(http.HandlerFunc(handler)).ServeHTTP(httptest.NewRecorder(),
		inboundRequest(http.Header{"Retry-Attempt": {retry}}).WithContext(ctx))
}

// headers returns the attempt header of each attempt, "" where there is none.
func (c *outboundCall) headers(name string) []string {
	var all []string
	for _, s := range c.base.Attempts() {
		all = append(all, s.Header.Get(name))
	}
	return all
}

// inboundRequest returns an inbound request with a header.
func inboundRequest(header http.Header) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	for name, values := range header {
		r.Header[http.CanonicalHeaderKey(name)] = values
	}
	return r
}

// Hazard I10: which headers make an inbound request a retry, and which number
// they give it. The requests that are sent for it then have one attempt, with
// that number in their header.
func TestInboundRetries(t *testing.T) {
	const own, envoy, grpc = "Retry-Attempt", "X-Envoy-Attempt-Count", "Grpc-Previous-Rpc-Attempts"
	for _, tt := range []struct {
		header  http.Header
		retries int
	}{
		{nil, 0},
		{http.Header{own: {}}, 0},
		{http.Header{own: {"12345678901-ab", "1732393571123.5", "+3", "-2"}}, 0},
		{http.Header{own: {"0", "3", "1"}}, 3},
		{http.Header{own: {"x", "2", ""}}, 2},
		{http.Header{"X-Retry-Attempt": {"1"}}, 0},
		{http.Header{envoy: {"1", "5"}}, 4},
		{http.Header{own: {"1"}, envoy: {"5"}, grpc: {"3"}}, 4},
		{http.Header{own: {"1"}, envoy: {"1"}}, 1},
	} {
		checkInbound(t, "", tt.header, tt.retries)
	}
	const most = 1<<30 - 1
	for name, retries := range map[string]map[string]int{
		own: {"": 0, "0": 0, "1": 1, "17": 17, "007": 7, " 2 ": 2, "\t2": 2,
			"2147483648": most, "99999999999999999999999999": most},
		envoy: {"0": 0, "1": 0, "2": 1, "99999999999999999999": most - 1},
		grpc:  {"0": 0, "1": 1, "4": 4},
	} {
		for value, want := range retries {
			checkInbound(t, "", http.Header{name: {value}}, want)
		}
	}
	for _, garbage := range []string{
		"-1", "+1", "abc", "1.0", "1.5", "1.", ".1", "0x1", "1e3", "1_0", "1, 2", "1;q=1", "\u0661",
		"1 1", "\u00a01", "NaN", "true",
	} {
		checkInbound(t, "", http.Header{own: {garbage}, envoy: {garbage}, grpc: {garbage}}, 0)
	}
}

// The transport's AttemptHeader and the header that is given to Middleware are
// independent of each other. Retry-Attempt always counts.
func TestInboundRetriesByName(t *testing.T) {
	for _, tt := range []struct {
		name, header string
		retries      int
	}{
		{"x-my-try", "X-My-Try", 2},
		{"x-my-try", "Retry-Attempt", 2},
		{"x-my-try", "X-Envoy-Attempt-Count", 1},
		{"x-my-try", "X-Other", 0},
		{"-", "Retry-Attempt", 2},
		{"-", "-", 0},
	} {
		checkInbound(t, tt.name, http.Header{tt.header: {"2"}}, tt.retries)
	}
}

// checkInbound checks that Middleware takes a header for that many retries. If
// name is not "", it is that of the transport's attempt header and, unless it
// stands for none, is given to Middleware.
func checkInbound(t *testing.T, name string, in http.Header, retries int) {
	t.Helper()
	t.Run(fmt.Sprintf("%s %q", name, in), func(t *testing.T) {
		call := outboundCall{cfg: httpretry.Config{AttemptHeader: name}}
		handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			call.send(t, r.Context(), s503)
		})
		out, middleware := "Retry-Attempt", httpretry.Middleware(handler)
		if name != "" && name != "-" {
			out, middleware = name, wrap(handler, name)
		}
		middleware.ServeHTTP(httptest.NewRecorder(), inboundRequest(in))

		want, reason := []string{"", "1", "2"}, httpretry.ReasonAttempts
		if retries > 0 {
			want, reason = []string{strconv.Itoa(retries)}, httpretry.ReasonCallerRetries
		}
		if name == "-" {
			want = make([]string, len(want))
		}
		assert.Equal(t, want, call.headers(out))
		assert.Equal(t, reason, call.Reason())
	})
}

// A Middleware may know several headers, whatever their spelling, and one inside
// another adds its own. Neither writes to the caller's slice.
func TestMiddlewareHeaders(t *testing.T) {
	all := []string{"x-my-try", "X-OTHER-TRY", "x-last-try"}
	for _, header := range []string{"X-My-Try", "X-Other-Try"} {
		for _, inside := range []bool{false, true} {
			var call outboundCall
			handler := wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				call.send(t, r.Context(), s503)
			}), all[:2]...)
			if inside {
				handler = httpretry.Middleware(handler)
			}
			handler.ServeHTTP(httptest.NewRecorder(), inboundRequest(http.Header{header: {"1"}}))
			assert.Len(t, call.base.Attempts(), 1, "%s, inside: %t", header, inside)
		}
	}
	assert.Equal(t, []string{"x-my-try", "X-OTHER-TRY", "x-last-try"}, all)
}

// wrap is Wrap with headers.
func wrap(next http.Handler, headers ...string) http.Handler {
	return httpretry.MiddlewareConfig{Headers: headers}.Wrap(next)
}

func TestWrapChecksHeaders(t *testing.T) {
	for name, want := range map[string]string{
		"":           `"": want a header name, such as X-Request-Id`,
		"X My Try":   `"X My Try": want a header name, such as X-Request-Id`,
		"content-id": `"content-id": want a header that HTTP does not define`,
	} {
		assert.PanicsWithError(t, "httpretry: MiddlewareConfig.Headers[1]: "+want, func() {
			wrap(http.NotFoundHandler(), "X-My-Try", name)
		})
	}
}

// The number that counts among those of two Middlewares, one inside the other,
// is the largest.
func TestMiddlewareInsideAnother(t *testing.T) {
	var call outboundCall
	inner := httpretry.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		call.send(t, r.Context(), s503)
	}))
	outer := wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Retry-Attempt", "2") // such as a gateway in the same process
		inner.ServeHTTP(w, r)
	}), "X-My-Try")
	outer.ServeHTTP(httptest.NewRecorder(), inboundRequest(http.Header{"X-My-Try": {"5"}}))
	assert.Equal(t, []string{"5"}, call.headers("Retry-Attempt"))
}

// The mark of Middleware and those of the other functions combine, whichever
// comes first.
func TestMiddlewareCombinesWithContexts(t *testing.T) {
	for name, tt := range map[string]struct {
		mark   func(context.Context) context.Context
		method string
		alone  []string // the attempt headers without an inbound retry
	}{
		"WithPolicy": {func(ctx context.Context) context.Context {
			return httpretry.WithPolicy(ctx, immediateRetries(2))
		}, "GET", []string{"", "1"}},
		"WithIdempotent": {httpretry.WithIdempotent, "POST", []string{"", "1", "2"}},
		"WithoutRetries": {httpretry.WithoutRetries, "GET", []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			inside, around := outboundCall{method: tt.method}, outboundCall{method: tt.method}
			receive(t.Context(), "7", func(r *http.Request) {
				inside.send(t, tt.mark(r.Context()), s503)
			})
			assert.Equal(t, []string{"7"}, inside.headers("Retry-Attempt"))
			receive(tt.mark(t.Context()), "0", func(r *http.Request) {
				around.send(t, r.Context(), s503)
			})
			assert.Equal(t, tt.alone, around.headers("Retry-Attempt"))
		})
	}
}

// Hazard I10: for an inbound retry, each request has one attempt, except if it
// is Unprocessed. Otherwise a service that retries would have to start again
// from the top.
func TestSingleShot(t *testing.T) {
	never := contract.Fails(&net.OpError{Op: "dial", Err: errno.ConnRefused})
	once, twice, thrice := []string{"2"}, []string{"2", "3"}, []string{"2", "3", "4"}
	for name, tt := range map[string]struct {
		method, key string
		steps       script
		headers     []string
		reason      httpretry.Reason
	}{
		"GET, 429": {"GET", "", script{contract.Status(429, "Retry-After", "1")}, once,
			httpretry.ReasonCallerRetries},
		"GET, error": {"GET", "", script{contract.Fails(io.ErrUnexpectedEOF)}, once,
			httpretry.ReasonCallerRetries},
		"POST, 503":            {"POST", "", script{s503}, once, httpretry.ReasonCallerRetries},
		"POST with a key, 503": {"POST", "key", script{s503}, once, httpretry.ReasonCallerRetries},
		"POST with a key, 409": {"POST", "key", script{s409}, once, httpretry.ReasonCallerRetries},
		"GET, 200":             {"GET", "", script{s200}, once, httpretry.ReasonSuccess},
		"GET, 404":             {"GET", "", script{s404}, once, httpretry.ReasonPermanent},
		"GET, do not retry": {
			"GET", "", script{contract.Status(503, "X-Should-Retry", "false")}, once,
			httpretry.ReasonDoNotRetry},
		"GET, 425":           {"GET", "", script{s425}, thrice, httpretry.ReasonAttempts},
		"POST, 425":          {"POST", "", script{s425}, thrice, httpretry.ReasonAttempts},
		"POST, 425, success": {"POST", "", script{s425, s200}, twice, httpretry.ReasonSuccess},
		"POST, 421":          {"POST", "", script{s421}, twice, httpretry.ReasonPermanent},
		"GET, 425, 503": {
			"GET", "", script{s425, s503}, twice, httpretry.ReasonCallerRetries},
		"POST, no connection": {"POST", "", script{never}, thrice, httpretry.ReasonAttempts},
		"GET, no connection, 503": {
			"GET", "", script{never, s503}, twice, httpretry.ReasonCallerRetries},
	} {
		t.Run(name, func(t *testing.T) {
			call := outboundCall{method: tt.method, key: tt.key}
			call.handle(t, "2", tt.steps...)
			assert.Equal(t, tt.headers, call.headers("Retry-Attempt"))
			assert.Equal(t, tt.reason, call.Reason())
		})
	}
}

// A request that has one attempt ends with that attempt's response or error,
// and the observer gets the reason.
func TestSingleShotIsReported(t *testing.T) {
	broken := errors.New("broken")
	for _, s := range []contract.Step{s503, contract.Fails(broken)} {
		var call outboundCall
		call.handle(t, "1", s)
		assert.Equal(t, s.Err, call.err, "as it came")
		require.Len(t, call.Events, 1)
		event := call.Events[0]
		assert.Equal(t, "caller_retries", event.Reason.String())
		assert.Equal(t, 1, event.Attempt.Number)
		assert.Equal(t, s.Err, event.Err)
		assert.Equal(t, s.Err == nil, event.Response != nil)
		assert.Zero(t, event.Wait)
		assert.Empty(t, event.Request.Header.Get("Retry-Attempt"), "the caller's own")
	}
	call := outboundCall{cfg: httpretry.Config{Policy: immediateRetries(3)}}
	call.cfg.Policy.AttemptTimeout = time.Millisecond
	call.handle(t, "1", contract.Step{Status: 200, Takes: time.Hour})
	require.EqualError(t, call.err,
		"httpretry: gave up after 1 attempt (caller_retries): attempt timed out after 1ms; hint: "+
			httpretry.ReasonCallerRetries.Hint())
}

// A POST that was provably never sent is retried for an inbound retry, too,
// whatever the error's text.
func TestSingleShotNeverSent(t *testing.T) {
	dials := 0
	base := faults.Base(t, nil)
	base.DialContext = func(context.Context, string, string) (net.Conn, error) {
		dials++
		return nil, errors.New("odd")
	}
	// only requests that are not idempotent are watched
	for method, want := range map[string]int{"POST": 3, "GET": 1} {
		dials = 0
		call := outboundCall{method: method, cfg: httpretry.Config{Base: base}}
		call.handle(t, "1")
		assert.Equal(t, want, dials, method)
	}
}

// The handler gets the server's own ResponseWriter, and Middleware adds nothing
// to the response, however the handler's requests end.
func TestMiddlewareLeavesResponsesAlone(t *testing.T) {
	for _, inbound := range []string{"0", "1"} {
		for _, s := range []contract.Step{
			s200, s503, contract.Status(429, "Retry-After", "3600"),
			contract.Status(500, "X-Should-Retry", "false"), contract.Fails(io.EOF),
		} {
			var call outboundCall
			rec := httptest.NewRecorder()
			httpretry.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.Same(t, rec, w)
				call.send(t, r.Context(), s)
				w.WriteHeader(http.StatusServiceUnavailable)
			})).ServeHTTP(rec, inboundRequest(http.Header{"Retry-Attempt": {inbound}}))
			assert.Equal(t, 503, rec.Code)
			assert.Empty(t, rec.Result().Header, "%s %v", inbound, s)
		}
	}
}

// The inbound request itself is not changed, and the handler may change its
// header without effect on the mark.
func TestMiddlewareLeavesRequestsAlone(t *testing.T) {
	r := inboundRequest(http.Header{"Retry-Attempt": {"1"}, "Accept": {"*/*"}})
	before := *r
	var call outboundCall
	httpretry.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, marked *http.Request) {
		assert.Equal(t, r.Header, marked.Header)
		assert.Same(t, r.URL, marked.URL)
		marked.Header.Del("Retry-Attempt")
		call.send(t, marked.Context(), s503)
	})).ServeHTTP(httptest.NewRecorder(), r)
	assert.Equal(t, []string{"1"}, call.headers("Retry-Attempt"))
	assert.Equal(t, before.Context(), r.Context())
}

// A request that outlives its handler is retried, and its attempt header starts
// from 1, whatever the inbound request's.
func TestMarkerEndsWithHandler(t *testing.T) {
	for name, leave := range map[string]func(){
		"returns": func() {},
		"panics":  func() { panic(http.ErrAbortHandler) },
		"exits":   runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			var left context.Context
			var handling sync.WaitGroup
			handling.Go(func() {
				defer func() { _ = recover() }()
				receive(t.Context(), "1", func(r *http.Request) {
					left = context.WithoutCancel(r.Context())
					leave()
				})
			})
			handling.Wait()
			var call, another outboundCall
			call.send(t, left, s503)
			assert.Equal(t, []string{"", "1", "2"}, call.headers("Retry-Attempt"))
			assert.Equal(t, httpretry.ReasonAttempts, call.Reason())

			// The mark of a later inbound request in that context is its own.
			receive(left, "0", func(r *http.Request) { another.send(t, r.Context(), s503) })
			assert.Len(t, another.base.Attempts(), 3)
		})
	}
}

// A request that is in flight when the handler returns is retried from then on.
func TestHandlerReturnsDuringCall(t *testing.T) {
	var calls sync.WaitGroup
	returned := make(chan struct{})
	script := contract.Play(s503)
	var call outboundCall
	sent := make(chan struct{}, 3)
	call.cfg.Base = contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		sent <- struct{}{}
		<-returned
		return script.RoundTrip(req)
	})
	receive(t.Context(), "1", func(r *http.Request) {
		calls.Go(func() { call.send(t, context.WithoutCancel(r.Context())) })
		<-sent
	})
	close(returned)
	calls.Wait()
	assert.Len(t, script.Attempts(), 3)
	assert.Equal(t, httpretry.ReasonAttempts, call.Reason())
}

// Requests that a handler sends concurrently share its mark, and handlers of
// other inbound requests do not see it.
func TestManyInbound(t *testing.T) {
	var handlers sync.WaitGroup
	for i := range 40 {
		handlers.Go(func() {
			retries := strconv.Itoa(i % 4)
			want := []string{retries}
			if retries == "0" {
				want = []string{"", "1", "2"}
			}
			receive(t.Context(), retries, func(r *http.Request) {
				var calls sync.WaitGroup
				for range 4 {
					calls.Go(func() {
						var call outboundCall
						call.send(t, r.Context(), s503)
						assert.Equal(t, want, call.headers("Retry-Attempt"))
					})
					r.Header.Set("Retry-Attempt", "9") // the handler's to change
				}
				calls.Wait()
			})
		})
	}
	handlers.Wait()
}

// Middleware costs a handler few allocations, and the requests that it sends
// none. The first attempt for an inbound request that is no retry is the
// caller's own request.
func TestMiddlewareAllocations(t *testing.T) {
	if contract.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	transport := contract.Unchecked(t, fullConfig(contract.BaseFunc(newInstant().respond)))
	var sends float64
	inner := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Measure") != "" {
			req := newGet(t).WithContext(r.Context())
			sends = testing.AllocsPerRun(1000, func() {
				if _, err := transport.RoundTrip(req); err != nil {
					t.Error(err)
				}
			})
		}
	})
	handler, w, r := httpretry.Middleware(inner), httptest.NewRecorder(), inboundRequest(nil)
	added := testing.AllocsPerRun(1000, func() { handler.ServeHTTP(w, r) })
	assert.LessOrEqual(t, added, 4.0)
	handler.ServeHTTP(w, inboundRequest(http.Header{"Measure": {"1"}}))
	assert.Zero(t, sends)
}

func BenchmarkMiddleware(b *testing.B) {
	inner := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	w, r := httptest.NewRecorder(), inboundRequest(http.Header{"Accept": {"*/*"}})
	measure := func(name string, handler http.Handler) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				handler.ServeHTTP(w, r)
			}
		})
	}
	measure("bare", inner)
	measure("Middleware", httpretry.Middleware(inner))
}

// A handler around Middleware sees the pattern that a mux inside has matched,
// and a form that the handler has parsed. A panic of the handler reaches it as it
// is.
func TestPatternAndFormAreSeenOutside(t *testing.T) {
	for _, panics := range []bool{false, true} {
		mux, form := http.NewServeMux(), new(multipart.Form)
		mux.HandleFunc("GET /a/{id}", func(_ http.ResponseWriter, r *http.Request) {
			r.MultipartForm = form
			if panics {
				panic(http.ErrAbortHandler)
			}
		})
		r, want := httptest.NewRequest("GET", "/a/7", nil), any(nil)
		if panics {
			want = http.ErrAbortHandler
		}
		func() {
			defer func() { assert.Equal(t, want, recover()) }()
			httpretry.Middleware(mux).ServeHTTP(httptest.NewRecorder(), r)
		}()
		assert.Equal(t, "GET /a/{id}", r.Pattern)
		assert.Same(t, form, r.MultipartForm)
	}
}

// The server removes the temporary files of a form that a handler has parsed.
func TestFormFilesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("TMP", dir) // on Windows
	srv := contract.NewServer(t,
		httpretry.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			assert.NoError(t, r.ParseMultipartForm(1))
			files, err := os.ReadDir(dir)
			assert.NoError(t, err)
			assert.Len(t, files, 1)
		})).ServeHTTP)
	var body strings.Builder
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", "name")
	require.NoError(t, err)
	_, err = part.Write(make([]byte, 11<<20)) // more than ParseMultipartForm keeps in memory
	require.NoError(t, err)
	require.NoError(t, form.Close())
	req := contract.Request(t, "POST", srv.URL, body.String())
	req.Header.Set("Content-Type", form.FormDataContentType())
	resp, err := srv.Client().Do(req)
	require.NoError(t, err)
	contract.ReadBody(t, resp)
	srv.Close() // waits for the handler
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, files)
}
