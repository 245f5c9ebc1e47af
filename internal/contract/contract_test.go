package contract_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// recorder is a testing.TB whose failures do not fail the test.
type recorder struct {
	testing.TB
	cleanups []func()
	failures []string
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) end() string {
	for len(r.cleanups) > 0 {
		last := len(r.cleanups) - 1
		cleanup := r.cleanups[last]
		r.cleanups = r.cleanups[:last]
		cleanup()
	}
	return strings.Join(r.failures, "\n")
}

// answer reads and closes the request's body, as a base must.
func answer(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
		if err := req.Body.Close(); err != nil {
			return nil, err
		}
	}
	return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("text"))}, nil
}

// New reports each violation of the contract. The library violates nothing, so
// here bases and callers do.
func TestNewReportsViolations(t *testing.T) {
	closed := func(resp *http.Response) {
		if resp != nil {
			_ = resp.Body.Close()
		}
	}
	// The first attempt of an idempotent request is the caller's own request.
	meddling := func(meddle func(*http.Request)) contract.BaseFunc {
		return func(req *http.Request) (*http.Response, error) {
			meddle(req)
			return answer(req)
		}
	}
	for _, tt := range []struct {
		name string
		base http.RoundTripper
		use  func(*http.Response)
		want string
	}{
		{"nothing", contract.BaseFunc(answer), closed, ""},
		{"response left open", contract.BaseFunc(answer), func(*http.Response) {},
			"a response was never closed"},
		{"URL", meddling(func(r *http.Request) { r.URL.Path = "/else" }), closed,
			"the request's URL was modified"},
		{"header", meddling(func(r *http.Request) { r.Header.Set("A", "b") }), closed,
			"the request's header was modified"},
		{"GetBody", meddling(func(r *http.Request) { r.GetBody = nil }), closed,
			"GetBody was modified"},
		{"body", meddling(func(r *http.Request) { r.Body = nil }), closed, "Body was modified"},
		{"length", meddling(func(r *http.Request) { r.ContentLength = 1 }), closed,
			"ContentLength was modified"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rec := &recorder{TB: t}
			transport := contract.New(rec, httpretry.Config{Base: tt.base})
			req, err := http.NewRequestWithContext(
				t.Context(), "PUT", "http://a.test/", strings.NewReader("text"))
			require.NoError(t, err)
			resp, err := transport.RoundTrip(req)
			require.NoError(t, err)
			tt.use(resp)
			if got := rec.end(); tt.want == "" {
				assert.Empty(t, got)
			} else {
				assert.Contains(t, got, tt.want)
			}
		})
	}
}

func TestNewReportsBodiesThatAreNotClosedOnce(t *testing.T) {
	boom := errors.New("boom")
	for _, tt := range []struct {
		name string
		base contract.BaseFunc
	}{
		{"once", answer},
		{"once, with an error", func(r *http.Request) (*http.Response, error) {
			_ = r.Body.Close()
			return nil, boom
		}},
		// The library closes, once, a request body that a base leaves open.
		{"not, with an error", func(*http.Request) (*http.Response, error) { return nil, boom }},
		{"twice", func(r *http.Request) (*http.Response, error) {
			_ = r.Body.Close()
			_ = r.Body.Close()
			return nil, boom
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rec := &recorder{TB: t}
			req, err := http.NewRequestWithContext(t.Context(), "POST", "http://a.test/", nil)
			require.NoError(t, err)
			body := contract.Counted("text")
			req.Body = body
			resp, _ := contract.New(rec, httpretry.Config{Base: tt.base}).RoundTrip(req)
			if resp != nil {
				require.NoError(t, resp.Body.Close())
			}
			assert.Empty(t, rec.end())
			assert.Equal(t, 1, body.Closes())
		})
	}
	t.Run("a body that a caller closes as well", func(t *testing.T) {
		rec := &recorder{TB: t}
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://a.test/", nil)
		require.NoError(t, err)
		body := contract.Counted("text")
		req.Body = body
		resp, err := contract.New(rec, httpretry.Config{Base: contract.BaseFunc(answer)}).
			RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.NoError(t, body.Close())
		assert.Contains(t, rec.end(), "closes of the request's body")
	})
}
