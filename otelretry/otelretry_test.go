package otelretry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/otelretry"
	"github.com/seed421102f4/httpretry/policyfile"
	"github.com/seed421102f4/httpretry/retrytest"
	"github.com/seed421102f4/httpretry/strategies"
)

// flaky answers 503 to the attempts before the one that the path names.
func flaky(t *testing.T) *httptest.Server {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		attempt, _ := strconv.Atoi(r.Header.Get("Retry-Attempt")) // none on the first
		if succeeds, _ := strconv.Atoi(strings.Trim(r.URL.Path, "/")); attempt+1 < succeeds {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(srv.Close)
	return srv
}

// measured returns the metrics that a MeterProvider collects.
func measured() (*sdkmetric.ManualReader, *sdkmetric.MeterProvider) {
	reader := sdkmetric.NewManualReader()
	return reader, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
}

func answer(req *http.Request, status int) *http.Response {
	return &http.Response{
		StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: req}
}

// always returns a base that answers each attempt with a status.
func always(t *testing.T, status int) *retrytest.Script {
	return retrytest.Base(t, retrytest.Always(retrytest.Status(status)))
}

func policy() httpretry.Policy {
	return httpretry.Policy{Backoff: strategies.Constant{Wait: time.Millisecond}, Budget: httpretry.Unlimited{}}
}

// recorded sends requests with an observer for cfg, and returns its records.
func recorded(t *testing.T, cfg otelretry.Config, base http.RoundTripper, send func(*http.Client)) map[string]metricdata.Aggregation {
	t.Helper()
	reader, provider := measured()
	cfg.MeterProvider = provider
	observe, err := otelretry.Observe(cfg)
	require.NoError(t, err)
	client := newClient(t, httpretry.Config{Base: base, Policy: policy(), Observe: observe})
	send(client)
	client.CloseIdleConnections()
	return collect(t, reader)
}

func newClient(t *testing.T, cfg httpretry.Config) *http.Client {
	t.Helper()
	transport, err := httpretry.New(cfg)
	require.NoError(t, err)
	return &http.Client{Transport: transport}
}

// collect returns the metrics of a reader by their names.
func collect(t *testing.T, reader sdkmetric.Reader) map[string]metricdata.Aggregation {
	t.Helper()
	var data metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &data))
	metrics := map[string]metricdata.Aggregation{}
	for _, scope := range data.ScopeMetrics {
		assert.Equal(t, otelretry.Scope, scope.Scope.Name)
		for _, m := range scope.Metrics {
			metrics[m.Name] = m.Data
		}
	}
	return metrics
}

func do(t *testing.T, client *http.Client, method, url string) error {
	t.Helper()
	return send(client, newRequest(t, t.Context(), method, url))
}

func newRequest(t *testing.T, ctx context.Context, method, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	require.NoError(t, err)
	return req
}

func send(client *http.Client, req *http.Request) error {
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// text returns a set of labels as "name=value" in the order of their names.
func text(set attribute.Set) string {
	var parts []string
	for _, kv := range set.ToSlice() {
		value := kv.Value.String()
		if isNumber := kv.Value.Type() == attribute.INT64; isNumber != (kv.Key == "http.response.status_code" || kv.Key == "server.port") {
			value += " of the wrong type"
		}
		parts = append(parts, fmt.Sprintf("%s=%s", kv.Key, value))
	}
	return strings.Join(parts, " ")
}

// requests returns the numbers of attempts, by the labels of their requests.
func requests(t *testing.T, metrics map[string]metricdata.Aggregation) []metricdata.HistogramDataPoint[int64] {
	t.Helper()
	data, ok := metrics["httpretry.request.attempts"].(metricdata.Histogram[int64])
	require.True(t, ok, "no request was recorded")
	return data.DataPoints
}

// onlyRequests returns those of requests with the same labels.
func onlyRequests(t *testing.T, metrics map[string]metricdata.Aggregation) metricdata.HistogramDataPoint[int64] {
	t.Helper()
	points := requests(t, metrics)
	require.Len(t, points, 1)
	return points[0]
}

func counts(t *testing.T, data metricdata.Aggregation) map[string]int64 {
	t.Helper()
	got := map[string]int64{}
	sum, ok := data.(metricdata.Sum[int64])
	require.True(t, ok, "%T", data)
	for _, point := range sum.DataPoints {
		got[text(point.Attributes)] = point.Value
	}
	return got
}

func TestRetriesAndRequests(t *testing.T) {
	srv := flaky(t)
	metrics := recorded(t, otelretry.Config{}, nil, func(client *http.Client) {
		for _, succeedsOn := range []int{1, 1, 1, 2, 3, 9} {
			require.NoError(t, do(t, client, "GET", fmt.Sprintf("%s/%d", srv.URL, succeedsOn)))
		}
		require.NoError(t, do(t, client, "POST", srv.URL+"/2"))
	})

	assert.Equal(t, map[string]int64{
		"http.request.method=GET http.response.status_code=503 httpretry.outcome=transient": 1 + 2 + 2,
	}, counts(t, metrics["httpretry.retries"]))

	// The requests with one, two and three attempts, and the sum of attempts.
	got := map[string][4]uint64{}
	for _, point := range requests(t, metrics) {
		counts := point.BucketCounts
		labels := strings.TrimPrefix(text(point.Attributes), "http.request.method=")
		got[labels] = [4]uint64{counts[1], counts[2], counts[3], uint64(point.Sum)}
	}
	assert.Equal(t, map[string][4]uint64{
		"GET http.response.status_code=200 httpretry.reason=success":            {3, 1, 1, 8},
		"GET http.response.status_code=503 httpretry.reason=attempts_exhausted": {0, 0, 1, 3},
		"POST http.response.status_code=503 httpretry.reason=not_idempotent":    {1, 0, 0, 1},
	}, got)

	waits := metrics["httpretry.wait"].(metricdata.Histogram[float64]).DataPoints
	require.Len(t, waits, 1)
	assert.EqualValues(t, 5, waits[0].Count)
	assert.GreaterOrEqual(t, waits[0].Sum, 0.005)
	assert.Len(t, metrics["httpretry.request.duration"].(metricdata.Histogram[float64]).DataPoints, 3)
}

// Attempts that a layer refuses are not counted, and neither are retries of
// such attempts. A retry that is refused itself is. Attempts that reach the
// server, and those of net/http that fail, are counted.
func TestRefusedAttempts(t *testing.T) {
	open := unprocessed(errors.New("the circuit is open"))
	for _, c := range []struct {
		name    string
		refused []int // attempts
		err     error
		success int // the attempt that the server would answer with 200
		reason  string
		retries int64
	}{
		{"none", nil, nil, 3, "success", 2},
		{"the first", []int{1}, open, 3, "success", 1},
		{"between", []int{2, 3}, open, 4, "success", 1},
		{"the last", []int{3, 4, 5, 6, 7, 8, 9, 10}, open, 11, "attempts_exhausted", 2},
		{"all but one", []int{2, 3, 4, 5, 6, 7, 8, 9, 10}, open, 11, "attempts_exhausted", 1},
		{"all", []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, open, 1, "attempts_exhausted", 0},
		{"final", []int{2}, httpretry.WithOutcome(open, httpretry.Final), 3, "permanent", 1},
		{"wrapped", []int{1}, fmt.Errorf("layer: %w", open), 2, "success", 0},
		{"all joined", []int{1}, errors.Join(open, open), 2, "success", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var sent int64
			base := roundTripper(func(req *http.Request) (*http.Response, error) {
				attempt := httpretry.Attempt(req.Context())
				if slices.Contains(c.refused, attempt) {
					return nil, c.err
				}
				sent++
				if attempt < c.success {
					return answer(req, 503), nil
				}
				return answer(req, 200), nil
			})
			metrics := recorded(t, otelretry.Config{}, base, func(client *http.Client) {
				many := policy()
				many.MaxAttempts = 10
				ctx := httpretry.WithPolicy(t.Context(), many)
				req := newRequest(t, ctx, "GET", "http://a.test/")
				for range 2 {
					_ = send(client, req) // some refusals are its errors
				}
			})
			var sum, count, retries int64
			for _, point := range requests(t, metrics) {
				assert.Contains(t, text(point.Attributes), "httpretry.reason="+c.reason)
				sum, count = sum+point.Sum, count+int64(point.Count)
			}
			assert.Equal(t, sent, sum)
			assert.EqualValues(t, 2, count)
			if data, ok := metrics["httpretry.retries"]; ok {
				for _, n := range counts(t, data) {
					retries += n
				}
			}
			assert.Equal(t, 2*c.retries, retries)
		})
	}
}

func unprocessed(err error) error { return httpretry.WithOutcome(err, httpretry.Unprocessed) }

// The refusals of a request are forgotten when it has ended, and the caller may
// send it again.
func TestRefusalsAreForgotten(t *testing.T) {
	base := retrytest.Base(t, retrytest.Fails(unprocessed(errors.New("the circuit is open"))),
		retrytest.Always(retrytest.Status(200)))
	metrics := recorded(t, otelretry.Config{}, base, func(client *http.Client) {
		req := newRequest(t, t.Context(), "GET", "http://a.test/")
		for range 2 {
			require.NoError(t, send(client, req))
		}
	})
	assert.Equal(t, []uint64{0, 2}, onlyRequests(t, metrics).BucketCounts[:2])
}

// An attempt of net/http is counted, even if it has no connection, or if the
// server has not processed it.
func TestAttemptsOfNetHTTP(t *testing.T) {
	srv := flaky(t)
	srv.Close()
	goAway := errors.New("http2: Transport received Server's graceful shutdown GOAWAY")
	timeout := context.DeadlineExceeded
	for want, base := range map[string]http.RoundTripper{
		"connection failed http.request.method=PUT httpretry.outcome=unprocessed": nil,
		"connection broken http.request.method=PUT httpretry.outcome=unprocessed": fails(t, goAway),

		"timeout http.request.method=PUT httpretry.outcome=transient": fails(t, timeout),
	} {
		metrics := recorded(t, otelretry.Config{}, base, func(client *http.Client) {
			require.Error(t, do(t, client, "PUT", srv.URL))
		})
		assert.EqualValues(t, 3, onlyRequests(t, metrics).Sum)
		got := counts(t, metrics["httpretry.retries"])
		assert.Equal(t, map[string]int64{"error.type=" + want: 2}, got)
	}
}

func fails(t *testing.T, err error) http.RoundTripper {
	return retrytest.Base(t, retrytest.Always(retrytest.Fails(err)))
}

// A request that is canceled in the wait after an attempt is one request. The
// attempt counts once, and not if it was refused.
func TestCanceledWhileWaiting(t *testing.T) {
	for name, c := range map[string]struct {
		attempt int // before the wait
		refused bool
		sent    int64
	}{
		"sent": {1, false, 1}, "first is refused": {1, true, 0}, "second is refused": {2, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				base := roundTripper(func(req *http.Request) (*http.Response, error) {
					if httpretry.Attempt(req.Context()) == c.attempt {
						time.AfterFunc(time.Microsecond, cancel)
						if c.refused {
							return nil, unprocessed(context.Canceled)
						}
					}
					return answer(req, 503), nil
				})
				metrics := recorded(t, otelretry.Config{}, base, func(client *http.Client) {
					req := newRequest(t, ctx, "GET", "http://a.test/")
					require.ErrorIs(t, send(client, req), context.Canceled)
				})
				point := onlyRequests(t, metrics)
				assert.Equal(t, c.sent, point.Sum)
				assert.EqualValues(t, 1, point.Count)
				assert.Equal(t, "error.type=canceled http.request.method=GET httpretry.reason=canceled", text(point.Attributes))
			})
		})
	}
}

// A body that is resumed adds retries, and no request. One that cannot be
// resumed fails.
func TestResumes(t *testing.T) {
	var requests atomic.Int32
	etag := `"v1"`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", etag)
		if requests.Add(1) == 1 {
			w.Header().Set("Content-Length", "7")
			_, _ = io.WriteString(w, "con")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader("content"))
	}))
	defer srv.Close()
	read := func(client *http.Client) error {
		resuming := policy()
		resuming.Resume = true
		ctx := httpretry.WithPolicy(t.Context(), resuming)
		resp, err := client.Do(newRequest(t, ctx, "GET", srv.URL))
		require.NoError(t, err)
		defer resp.Body.Close()
		_, err = io.ReadAll(resp.Body)
		return err
	}
	metrics := recorded(t, otelretry.Config{}, nil, func(client *http.Client) { require.NoError(t, read(client)) })
	assert.Equal(t, map[string]int64{"error.type=connection broken http.request.method=GET httpretry.outcome=transient": 1}, counts(t, metrics["httpretry.retries"]))
	assert.Equal(t, map[string]int64{"http.response.status_code=206 httpretry.reason=success": 1}, counts(t, metrics["httpretry.resumes"]))
	assert.EqualValues(t, 1, onlyRequests(t, metrics).Count)

	requests.Store(0)
	etag = ""
	metrics = recorded(t, otelretry.Config{Hosts: []string{"127.0.0.1"}}, nil, func(client *http.Client) { require.Error(t, read(client)) })
	assert.Equal(t, map[string]int64{"error.type=connection broken httpretry.reason=not_resumable server.address=127.0.0.1": 1},
		counts(t, metrics["httpretry.resumes"]))
	assert.EqualValues(t, 1, onlyRequests(t, metrics).Count)
}

// Labels are bounded, whatever is asked for and from whom.
func TestLabelsAreBounded(t *testing.T) {
	base := roundTripper(func(req *http.Request) (*http.Response, error) {
		if strings.HasPrefix(req.URL.Host, "fails") {
			return nil, errors.New("dial " + req.URL.Host)
		}
		if invented, err := strconv.Atoi(strings.TrimPrefix(req.URL.Path, "/status")); err == nil {
			return answer(req, invented), nil
		}
		return answer(req, 200), nil
	})
	metrics := recorded(t, otelretry.Config{Hosts: []string{"API.example.", "::1"}}, base, func(client *http.Client) {
		for i := range 100 {
			require.NoError(t, do(t, client, "GET", fmt.Sprintf("http://host%d.example/path%d?q=%d", i, i, i)))
			require.Error(t, do(t, client, "GET", fmt.Sprintf("http://fails%d.example/", i)))
			require.NoError(t, do(t, client, fmt.Sprintf("METHOD%d", i), "http://api.example:8080/"))
			require.NoError(t, do(t, client, "QUERY", "http://[::1]:8080/"))
			require.NoError(t, do(t, client, "PUT", fmt.Sprintf("http://api.example/status%d", 1000+i)))
		}
	})
	assert.Equal(t, map[string]int64{
		"error.type=failed http.request.method=GET httpretry.outcome=transient server.address=_OTHER": 200,
	}, counts(t, metrics["httpretry.retries"]))
	var labels []string
	for _, point := range requests(t, metrics) {
		labels = append(labels, text(point.Attributes))
	}
	assert.ElementsMatch(t, []string{
		"http.request.method=GET http.response.status_code=200 httpretry.reason=success server.address=_OTHER",
		"error.type=failed http.request.method=GET httpretry.reason=attempts_exhausted server.address=_OTHER",
		"http.request.method=_OTHER http.response.status_code=200 httpretry.reason=success server.address=api.example",
		"http.request.method=QUERY http.response.status_code=200 httpretry.reason=success server.address=::1",
		"error.type=invalid status http.request.method=PUT httpretry.reason=permanent server.address=api.example server.port=80",
	}, labels)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestBadHosts(t *testing.T) {
	var want []string
	bad := []string{"", "b.example:", "b.example:65536", "b.example:0", "http://c.example", "a.*.example", "*.", "[e.example]", "*.::1"}
	for i, host := range bad {
		want = append(want, fmt.Sprintf("otelretry: Config.Hosts[%d]: %q: want a name or an IP address, "+
			"with or without a port, or a wildcard as \"*.example.com\"", i+1, host))
	}
	cfg := otelretry.Config{Hosts: append([]string{"a.example"}, bad...)}
	_, err := otelretry.Observe(cfg)
	require.EqualError(t, err, strings.Join(want, "\n"))
	_, err = otelretry.Origins(new(httpretry.RetryTransport), cfg)
	require.EqualError(t, err, strings.Join(want, "\n"))
}

// The default meter provider is the global one.
func TestGlobalProvider(t *testing.T) {
	reader, provider := measured()
	otel.SetMeterProvider(provider)
	observe, err := otelretry.Observe(otelretry.Config{})
	require.NoError(t, err)
	observe(t.Context(), httpretry.Event{Request: new(http.Request), Attempt: httpretry.AttemptResult{Number: 1}, Reason: httpretry.ReasonSuccess, Response: &http.Response{StatusCode: 200}})
	decided, err := otelretry.ObserveBudget(otelretry.Config{})
	require.NoError(t, err)
	decided(t.Context(), otelretry.BudgetDecision{})
	metrics := collect(t, reader)
	assert.Len(t, requests(t, metrics), 1)
	assert.Len(t, counts(t, metrics["httpretry.budget.decisions"]), 1)
}

// Each attempt has a span of its own, and each but the first says which it is.
func TestResendCount(t *testing.T) {
	srv := flaky(t)
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	count := otelretry.ResendCount(nil)
	base := otelhttp.NewTransport(count, otelhttp.WithTracerProvider(provider))
	client := newClient(t, httpretry.Config{Base: base, Policy: policy()})
	require.NoError(t, do(t, client, "GET", srv.URL+"/3"))
	(&http.Client{Transport: count}).CloseIdleConnections() // otelhttp does not forward it

	var got []string
	for _, span := range spans.Ended() {
		count := "none"
		for _, kv := range span.Attributes() {
			if kv.Key == "http.request.resend_count" {
				count = strconv.FormatInt(kv.Value.AsInt64(), 10) // 0 if it is no number
			}
		}
		got = append(got, count)
	}
	assert.Equal(t, []string{"none", "1", "2"}, got)
}

func TestResendCountForwardsCloseIdleConnections(t *testing.T) {
	base := &closer{}
	(&http.Client{Transport: otelretry.ResendCount(base)}).CloseIdleConnections()
	assert.Equal(t, 1, base.closed)
	without := roundTripper(func(*http.Request) (*http.Response, error) { return nil, nil })
	(&http.Client{Transport: otelretry.ResendCount(without)}).CloseIdleConnections()
}

// The default base is a pool of its own, as that of httpretry. A nil pointer is
// a mistake, which httpretry.New would report. httpretry looks through the
// layers.
func TestBaseOfResendCount(t *testing.T) {
	first, second := unwrap(otelretry.ResendCount(nil)), unwrap(otelretry.ResendCount(nil))
	assert.IsType(t, new(http.Transport), first)
	assert.NotSame(t, first, second)
	assert.NotSame(t, http.DefaultTransport, first)

	base := new(http.Transport)
	assert.Same(t, base, unwrap(otelretry.ResendCount(base)))
	assert.Same(t, base, unwrap(unwrap(otelretry.NewTransport(base))))
	assert.IsType(t, base, unwrap(unwrap(otelretry.NewTransport(nil))))

	for _, base := range []http.RoundTripper{(*http.Transport)(nil), roundTripper(nil)} {
		assert.PanicsWithValue(t, fmt.Sprintf("otelretry: ResendCount: a nil %T: "+
			"want no value for the default, or a usable transport", base),
			func() { otelretry.ResendCount(base) })
	}
}

// unwrap returns the base of a layer.
func unwrap(layer http.RoundTripper) http.RoundTripper {
	return layer.(interface{ Unwrap() http.RoundTripper }).Unwrap()
}

// httpretry looks through ResendCount. So it knows that nothing was sent if a
// dial failed, and retries a POST that has no key and no body.
func TestPostAfterFailedDialBelowResendCount(t *testing.T) {
	dials := 0
	base := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials++; dials == 1 {
			return nil, errors.New("the tunnel is closed") // it proves nothing by itself
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	defer base.CloseIdleConnections()
	client := newClient(t, httpretry.Config{Base: otelretry.ResendCount(base), Policy: policy()})
	require.NoError(t, do(t, client, "POST", flaky(t).URL))
	assert.Equal(t, 2, dials)
}

// GetBody is hidden from net/http, which could use it to send a POST without a
// key a second time over HTTP/2. Each attempt is sent once.
func TestResendCountSendsOnce(t *testing.T) {
	var hidden []bool
	layer := &unwrappable{new(http.Transport), func(req *http.Request) (*http.Response, error) {
		hidden = append(hidden, req.GetBody == nil)
		return nil, errors.Join(unprocessed(errors.New("refused")), req.Body.Close())
	}}
	client := newClient(t, httpretry.Config{Base: otelretry.ResendCount(layer), Policy: policy()})
	_, err := client.Post("https://a.test/", "text/plain", strings.NewReader("text"))
	require.Error(t, err)
	assert.Equal(t, []bool{true, true, true}, hidden)
}

// Of two RetryTransports with ResendCount between them, only the outer retries.
func TestResendCountAboveRetryTransport(t *testing.T) {
	base := always(t, 503)
	inner := newClient(t, httpretry.Config{Base: base, Policy: policy()}).Transport
	outer := newClient(t, httpretry.Config{Base: otelretry.ResendCount(inner), Policy: policy()})
	require.NoError(t, do(t, outer, "GET", "http://a.test/"))
	assert.Len(t, base.Attempts(), 3)
}

// unwrappable is a layer above base.
type unwrappable struct {
	base      http.RoundTripper
	roundTrip roundTripper
}

func (u *unwrappable) RoundTrip(req *http.Request) (*http.Response, error) { return u.roundTrip(req) }

func (u *unwrappable) Unwrap() http.RoundTripper { return u.base }

type closer struct {
	http.Transport
	closed int
}

func (c *closer) CloseIdleConnections() { c.closed++ }

// The spellings that httpretry takes for one host have one label, and two that
// it tells apart have two.
func TestSpellingsOfAHost(t *testing.T) {
	for _, tt := range []struct{ configured, requested, want string }{
		{"api.example", "api.example", "api.example"},
		{"API.example.", "api.EXAMPLE", "api.example"},
		{"api.example", "Api.Example.:8443", "api.example"},
		{"api.example", "api.example..", "api.example"},
		{"::1", "[::1]:8080", "::1"},
		{"[::1]", "[0:0:0:0:0:0:0:1]", "::1"},
		{"2001:DB8::A", "[2001:db8:0::a]", "2001:db8::a"},
		{"fe80::1%eth0", "[fe80::1%25ETH0]", "fe80::1%eth0"},
		{"127.0.0.1", "127.0.0.1:80", "127.0.0.1"},
		{"bücher.example", "bücher.example", "bücher.example"},
		{"BÜCHER.example", "bücher.example", "bücher.example"},
		{"bücher.example", "xn--bcher-kva.example", "_OTHER"},
		{"api.example", "api.example.test", "_OTHER"},
		{"fe80::1%eth0", "[fe80::1%25eth1]", "_OTHER"},
	} {
		address, _, _ := strings.Cut(serverOf(t, "http://"+tt.requested+"/", tt.configured), " ")
		assert.Equal(t, tt.want, address, tt)
	}
}

// serverOf returns the address and the port in the labels of a request.
func serverOf(t *testing.T, url string, hosts ...string) string {
	t.Helper()
	cfg := otelretry.Config{Hosts: hosts}
	metrics := recorded(t, cfg, always(t, 200), func(client *http.Client) {
		require.NoError(t, do(t, client, "GET", url))
	})
	labels := text(onlyRequests(t, metrics).Attributes)
	_, server, found := strings.Cut(labels, " httpretry.reason=success server.address=")
	require.True(t, found, labels)
	return server
}

func TestObserveBudget(t *testing.T) {
	reader, provider := measured()
	decided, err := otelretry.ObserveBudget(otelretry.Config{MeterProvider: provider})
	require.NoError(t, err)
	for _, d := range []otelretry.BudgetDecision{
		{Shared: true, Allowed: true}, {Shared: true, Allowed: true}, {Shared: true},
		{Allowed: true}, {},
	} {
		decided(t.Context(), d)
	}
	metrics := collect(t, reader)
	assert.Len(t, metrics, 1)
	assert.Equal(t, map[string]int64{
		"httpretry.allowed=true httpretry.budget=shared":  2,
		"httpretry.allowed=false httpretry.budget=shared": 1,
		"httpretry.allowed=true httpretry.budget=local":   1,
		"httpretry.allowed=false httpretry.budget=local":  1,
	}, counts(t, metrics["httpretry.budget.decisions"]))
}

// The README has all metrics, with their kinds, units and labels. Programs and
// dashboards depend on them.
func TestReadmeHasAllMetrics(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	want := map[string]string{}
	row := regexp.MustCompile("(?m)^\\| `(httpretry\\.[^`]+)` \\| (counter|histogram|gauge|up-down counter) \\| `([^`]+)` \\| (.*) \\|$")
	label := regexp.MustCompile("`([^`]+)`")
	for _, m := range row.FindAllStringSubmatch(string(readme), -1) {
		var labels []string
		for _, l := range label.FindAllStringSubmatch(m[4], -1) {
			labels = append(labels, l[1])
		}
		slices.Sort(labels)
		want[m[1]] = fmt.Sprintf("%s %s %v", m[2], m[3], labels)
	}

	reader, provider := measured()
	cfg := otelretry.Config{MeterProvider: provider, Name: "payments", Hosts: []string{"a.test"}}
	observe, err := otelretry.Observe(cfg)
	require.NoError(t, err)
	decided, err := otelretry.ObserveBudget(cfg)
	require.NoError(t, err)
	decided(t.Context(), otelretry.BudgetDecision{})
	base := roundTripper(func(req *http.Request) (*http.Response, error) {
		if req.URL.Path == "/error" {
			return nil, io.ErrUnexpectedEOF
		}
		if etag, ok := strings.CutPrefix(req.URL.Path, "/breaks"); ok && req.Header.Get("Range") == "" {
			return &http.Response{StatusCode: 200, Header: http.Header{"Etag": {etag}}, ContentLength: 8,
				Body: io.NopCloser(io.MultiReader(strings.NewReader("half"), iotest.ErrReader(io.ErrUnexpectedEOF))), Request: req}, nil
		}
		return answer(req, 503), nil
	})
	resuming := policy()
	resuming.Resume = true
	resuming.Budget = &httpretry.HostBudget{}
	transport, err := httpretry.New(httpretry.Config{Base: base, Policies: map[string]httpretry.Policy{"a.test": resuming}, Observe: observe})
	require.NoError(t, err)
	_, err = otelretry.Origins(transport, cfg)
	require.NoError(t, err)
	reloader := &policyfile.Reloader{Path: "none", Transport: transport, Report: func(error) {}}
	_, err = otelretry.PolicyFile(reloader, cfg)
	require.NoError(t, err)
	require.Error(t, reloader.Reload())
	client := &http.Client{Transport: transport}
	require.NoError(t, do(t, client, "GET", "http://a.test/"))
	require.Error(t, do(t, client, "GET", "http://a.test/error"))
	for _, etag := range []string{"", `"v1"`} { // without one, the body is not resumed
		resp, err := client.Get("http://a.test/breaks" + etag)
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.Error(t, err)
		require.NoError(t, resp.Body.Close())
	}

	var data metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &data))
	got := map[string]string{}
	for _, m := range data.ScopeMetrics[0].Metrics {
		var labels []string
		kind := "histogram"
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			kind = map[bool]string{true: "counter", false: "up-down counter"}[data.IsMonotonic]
		case metricdata.Gauge[int64], metricdata.Gauge[float64]:
			kind = "gauge"
		}
		points, err := json.Marshal(m.Data)
		require.NoError(t, err)
		for _, key := range regexp.MustCompile(`"Key":"([^"]+)"`).FindAllStringSubmatch(string(points), -1) {
			labels = append(labels, key[1])
		}
		slices.Sort(labels)
		got[m.Name] = fmt.Sprintf("%s %s %v", kind, m.Unit, slices.Compact(labels))
	}
	assert.Equal(t, got, want)
}
