package httpretry_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/strategies"
)

// Each field of a Policy either matters only once an attempt has failed, or it
// keeps requests from being plain.
func TestFieldsOfPlainPolicies(t *testing.T) {
	classify := func(*http.Request, *http.Response, error) httpretry.Outcome {
		return httpretry.Final
	}
	fields := map[string]struct {
		value   any
		isPlain bool
	}{
		"MaxAttempts":       {7, true},
		"Backoff":           {strategies.Constant{}, true},
		"MaxRetryAfter":     {time.Hour, true},
		"AttemptTimeout":    {time.Hour, false},
		"MaxElapsed":        {time.Hour, false},
		"Budget":            {contract.UsedUp{}, false},
		"Cooldown":          {httpretry.CooldownWait, false},
		"CooldownKey":       {func(*http.Request) string { return "" }, true},
		"Classify":          {classify, false},
		"Idempotent":        {httpretry.Idempotent, false},
		"NewIdempotencyKey": {httpretry.RandomKey, true}, // a plain request needs none
		"IdempotencyHeader": {"Request-Id", true},
		"ReplayBuffer":      {int64(7), true}, // the body of a plain request has GetBody
		"Resume":            {true, false},
		"ResumeSame":        {func(_, _ *http.Response) bool { return true }, true}, // of Resume
		"ResumeIdle":        {time.Hour, true},                                      // of Resume
	}
	assert.True(t, httpretry.IsPlain(httpretry.Policy{}))
	assert.True(t, httpretry.IsPlain(httpretry.Policy{Budget: new(httpretry.HostBudget)}))
	assert.True(t, httpretry.IsPlain(httpretry.Policy{Budget: httpretry.Unlimited{}}))
	for f := range reflect.TypeFor[httpretry.Policy]().Fields() {
		want, ok := fields[f.Name]
		if !f.IsExported() || !assert.True(t, ok,
			"%s: want it in the table, and in allowsPlain if it matters to a success", f.Name) {
			continue
		}
		var p httpretry.Policy
		reflect.ValueOf(&p).Elem().FieldByName(f.Name).Set(reflect.ValueOf(want.value))
		assert.Equal(t, want.isPlain, httpretry.IsPlain(p), f.Name)
	}
}

// A plain request that was canceled before is not sent, and its error is that
// of its context.
func TestPlainRequestCanceledBefore(t *testing.T) {
	sent := 0
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		sent++
		return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, nil
	})
	transport := contract.New(t, httpretry.Config{Base: base})
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("cause")
	cancel(cause)
	_, err := transport.RoundTrip(contract.Request(t, "GET", "http://a.test/", "").WithContext(ctx))
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, err, cause)
	assert.EqualError(t, err, "context canceled: cause")

	req := contract.Request(t, "GET", "http://a.test/", "")
	canceled := make(chan struct{})
	close(canceled)
	//nolint:staticcheck // http.Client sets it
	req.Cancel = canceled
	_, err = transport.RoundTrip(req)
	requireError(t, err, 0, httpretry.ReasonCanceled)
	assert.Zero(t, sent)
}

// The Request of a plain response is the caller's, or Base's own.
func TestRequestOfPlainResponse(t *testing.T) {
	req := contract.Request(t, "GET", "http://a.test/", "")
	redirected := contract.Request(t, "GET", "http://b.test/", "")
	for name, tt := range map[string]struct{ base, want *http.Request }{
		"the caller's":       {req, req},
		"none":               {nil, req},
		"a copy by net/http": {req.WithContext(req.Context()), req},
		"of a redirect":      {redirected, redirected},
	} {
		t.Run(name, func(t *testing.T) {
			base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Body: http.NoBody, Request: tt.base}, nil
			})
			resp, err := contract.New(t, httpretry.Config{Base: base}).RoundTrip(req)
			require.NoError(t, err)
			assert.Same(t, tt.want, resp.Request)
		})
	}
}

// The success of a plain request ends a cool-down.
func TestPlainSuccessEndsCooldown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := contract.Play(contract.Status(503, "Retry-After", "30"), contract.Status(200))
		transport := contract.New(t,
			httpretry.Config{Base: base, Policy: httpretry.Policy{MaxAttempts: 1}})
		get := func(ctx context.Context) error {
			resp, err := transport.RoundTrip(
				contract.Request(t, "GET", "http://a.test/", "").WithContext(ctx))
			if err == nil {
				contract.ReadBody(t, resp)
			}
			return err
		}
		failing := httpretry.WithPolicy(
			t.Context(), httpretry.Policy{Cooldown: httpretry.CooldownFail})
		require.NoError(t, get(t.Context())) // the 503
		requireError(t, get(failing), 0, httpretry.ReasonCooldown)
		require.NoError(t, get(t.Context()))
		assert.NoError(t, get(failing))
	})
}

// A panic after a plain attempt has failed leaves nothing open.
func TestPanicAfterPlainFailure(t *testing.T) {
	base := contract.Play(contract.Status(503))
	transport := contract.New(t, httpretry.Config{Base: base, Policy: httpretry.Policy{
		Backoff: strategies.Func(func(int) time.Duration { panic("boom") })}})
	assert.PanicsWithValue(t, "boom", func() {
		_, _ = transport.RoundTrip(contract.Request(t, "GET", "http://a.test/", ""))
	})
}

// A plain request whose Base returns neither a response nor an error fails.
func TestPlainRequestWithoutResult(t *testing.T) {
	base := contract.BaseFunc(func(*http.Request) (*http.Response, error) { return nil, nil })
	_, err := contract.Unchecked(t, httpretry.Config{Base: base}).
		RoundTrip(contract.Request(t, "GET", "http://a.test/", ""))
	assert.ErrorContains(t, err, "neither")
}

// requireError requires an Error with that number of attempts and that reason.
func requireError(t *testing.T, err error, attempts int, reason httpretry.Reason) {
	t.Helper()
	var e *httpretry.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, attempts, e.Attempts)
	assert.Equal(t, reason, e.Reason)
}

// A layer must not replace the body of a plain request. If it does, the retry
// still sends the same bytes.
func TestLayerReplacesBodyOfPlainRequest(t *testing.T) {
	var sent []string
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		req.Body = struct{ io.ReadCloser }{req.Body} // as recorders for tests do
		body, err := io.ReadAll(req.Body)
		sent = append(sent, string(body))
		status := 503
		if len(sent) == 2 {
			status = 200
		}
		return &http.Response{StatusCode: status, Body: http.NoBody, Request: req}, err
	})
	transport := contract.Unchecked(t, httpretry.Config{
		Base: base, Policy: httpretry.Policy{Backoff: strategies.Constant{}}})
	resp, err := transport.RoundTrip(contract.Request(t, "PUT", "http://a.test/", "text"))
	require.NoError(t, err)
	assert.Equal(t, 200, resp.StatusCode)
	assert.Equal(t, []string{"text", "text"}, sent)
}

// Nor may a layer clear the body and GetBody of a plain request, which is then
// retried as well.
func TestLayerClearsBodyOfPlainRequest(t *testing.T) {
	var sent []string
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(req.Body)
		sent = append(sent, string(body))
		req.Body, req.GetBody = nil, nil
		return &http.Response{StatusCode: 503, Body: http.NoBody, Request: req}, err
	})
	transport := contract.Unchecked(t, httpretry.Config{
		Base: base, Policy: httpretry.Policy{Backoff: strategies.Constant{}}})
	resp, err := transport.RoundTrip(contract.Request(t, "PUT", "http://a.test/", "text"))
	require.NoError(t, err)
	assert.Equal(t, 503, resp.StatusCode)
	assert.Equal(t, []string{"text", "text", "text"}, sent)
}

// Some layers replace the body of each request, such as go-vcr, which breaks
// the contract of http.RoundTripper. A request without a body is still retried
// without one.
func TestLayerThatReplacesBodies(t *testing.T) {
	for _, body := range []io.ReadCloser{nil, http.NoBody} {
		for _, timeout := range []time.Duration{0, time.Minute} { // plain, and not
			synctest.Test(t, func(t *testing.T) {
				sent := 0
				transport, err := httpretry.New(httpretry.Config{
					Policy: httpretry.Policy{AttemptTimeout: timeout},
					Base: contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
						if sent > 0 || timeout > 0 {
							assert.True(t, req.Body == body, "attempt %d: %v", sent+1, req.Body)
						}
						sent++
						req.Body = io.NopCloser(strings.NewReader(""))
						return &http.Response{StatusCode: 503, Body: http.NoBody, Request: req}, nil
					}),
				})
				require.NoError(t, err)
				req := contract.Request(t, "GET", "http://a.test/", "")
				req.Body = body
				resp, err := transport.RoundTrip(req)
				require.NoError(t, err)
				resp.Body.Close()
				assert.Equal(t, 3, sent)
			})
		}
	}
}
