package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// Hazard E1, E4: an attempt ends when its timeout expires.
func TestAttemptTimeout(t *testing.T) {
	for _, tt := range []struct {
		method   string
		attempts int
		want     string
	}{
		{"GET", 5,
			"httpretry: gave up after 5 attempts (attempts_exhausted): attempt timed out after 2s; hint: " +
				httpretry.ReasonAttempts.Hint()},
		{"POST", 1,
			"httpretry: gave up after 1 attempt (not_idempotent): attempt timed out after 2s; hint: " +
				httpretry.ReasonNotIdempotent.Hint()},
	} {
		contract.Bubble(t, tt.method, func(t *testing.T) {
			base := contract.Play(contract.Step{Status: 200, Takes: time.Hour})
			policy := contract.RetryEvery(time.Second)
			policy.AttemptTimeout = 2 * time.Second
			_, err := contract.With(t, base, policy).
				RoundTrip(contract.Request(t, tt.method, "http://a.test/", ""))
			require.EqualError(t, err, tt.want)
			assert.Len(t, base.Attempts(), tt.attempts)
			for _, wait := range base.Waits() {
				assert.Equal(t, 3*time.Second, wait)
			}
			var timeout net.Error
			require.ErrorAs(t, err, &timeout)
			assert.True(t, timeout.Timeout())
			//nolint:staticcheck // old code asks
			assert.True(t, timeout.Temporary())
			require.NotErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, context.DeadlineExceeded, "as net/http's own timeouts are")
		})
	}
}

// An AttemptTimeout includes sending the request's body. ResponseHeaderTimeout
// of http.Transport does not.
func TestAttemptTimeoutIncludesTheUpload(t *testing.T) {
	for _, tt := range []struct {
		attempt, headers time.Duration // timeouts
		status, uploads  int
	}{
		{time.Second, 0, 0, 2},
		{0, time.Second, 200, 1},
	} {
		inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
			base := start(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
			})
			base.ResponseHeaderTimeout = tt.headers
			uploads := 0
			upload := func() (io.ReadCloser, error) {
				uploads++
				r, w := io.Pipe()
				time.AfterFunc(3*time.Second, func() { _ = w.Close() }) // r may be closed
				return r, nil
			}
			policy := contract.RetryEvery(0)
			policy.MaxAttempts, policy.AttemptTimeout = 2, tt.attempt
			body, err := upload()
			require.NoError(t, err)
			req := contract.Streamed(t, "PUT", "http://a.test/", body)
			req.GetBody = upload
			resp, err := contract.With(t, base, policy).RoundTrip(req)
			assert.Equal(t, tt.uploads, uploads)
			if tt.status == 0 {
				require.ErrorContains(t, err, "attempt timed out after 1s")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.status, resp.StatusCode)
			contract.ReadBody(t, resp)
		})
	}
}

// Hazard E1: response headers that arrive exactly when the timeout expires are
// too late.
func TestAttemptTimeoutAtTheHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := contract.Counted("")
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			time.Sleep(2 * time.Second)
			return &http.Response{StatusCode: 200, Body: body}, nil
		})
		policy := httpretry.Policy{MaxAttempts: 1, AttemptTimeout: 2 * time.Second}
		_, err := contract.With(t, base, policy).RoundTrip(newGet(t))
		require.EqualError(t, err,
			"httpretry: gave up after 1 attempt (retries_disabled): attempt timed out after 2s; "+
				"hint: "+httpretry.ReasonDisabled.Hint())
		assert.EqualValues(t, 1, body.Closes())
	})
}

// limiterError is the error of a limiter in Base that has sent nothing.
type limiterError struct {
	outcome httpretry.Outcome
	err     error
}

func (e *limiterError) Error() string              { return "limiter: " + e.err.Error() }
func (e *limiterError) Unwrap() error              { return e.err }
func (e *limiterError) Outcome() httpretry.Outcome { return e.outcome }

// If the timeout ends an attempt in a layer of Base that states an Outcome, the
// attempt has that Outcome. So a request that a limiter has not sent is
// retried, even if it is a POST. The error is still that of a timeout.
func TestAttemptTimeoutInALimiter(t *testing.T) {
	for _, tt := range []struct {
		outcome   httpretry.Outcome
		get, post int // attempts
	}{
		{httpretry.Final, 1, 1},
		{httpretry.Transient, 5, 1},
		{httpretry.Unprocessed, 5, 5},
	} {
		for method, want := range map[string]int{"GET": tt.get, "POST": tt.post} {
			contract.Bubble(t, fmt.Sprintf("%v/%s", tt.outcome, method), func(t *testing.T) {
				var errLimiter *limiterError
				sends := 0
				base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					sends++
					<-req.Context().Done()
					errLimiter = &limiterError{
						tt.outcome, fmt.Errorf("%w: %w", io.ErrNoProgress, req.Context().Err())}
					return nil, fmt.Errorf("layer: %w", errLimiter)
				})
				policy := contract.RetryEvery(time.Second)
				policy.AttemptTimeout = 2 * time.Second
				_, err := contract.With(t, base, policy).
					RoundTrip(contract.Request(t, method, "http://a.test/", "text"))
				assert.Equal(t, want, sends)
				require.ErrorContains(t, err, "attempt timed out after 2s: layer: limiter: ")
				var e *httpretry.Error
				require.ErrorAs(t, err, &e)
				assert.Equal(t, want, e.Attempts)
				assert.True(t, e.Timeout())
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorIs(t, err, io.ErrNoProgress, "of the limiter")
				require.NotErrorIs(t, err, context.Canceled, "the caller has not canceled")
				var got *limiterError
				require.ErrorAs(t, err, &got)
				assert.Same(t, errLimiter, got)
			})
		}
	}
}

// An AttemptTimeout makes no proof of an error that is joined with another one.
func TestAttemptTimeoutOfAFailOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sends := 0
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			sends++
			<-req.Context().Done()
			breaker := &limiterError{httpretry.Unprocessed, errors.New("open")}
			return nil, errors.Join(breaker, contract.ErrReset)
		})
		policy := contract.RetryEvery(time.Second)
		policy.AttemptTimeout = time.Second
		_, err := contract.With(t, base, policy).
			RoundTrip(contract.Request(t, "POST", "http://a.test/", ""))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 1, sends)
	})
}

// An Outcome does not hide that the caller's deadline has passed.
func TestDeadlineInALimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, &limiterError{httpretry.Unprocessed, req.Context().Err()}
		})
		events := new(contract.Record)
		policy := contract.RetryEvery(time.Second)
		policy.AttemptTimeout = 2 * time.Second
		_, err := contract.Recorded(t, base, policy, events).
			RoundTrip(contract.Request(t, "POST", "http://a.test/", "").WithContext(ctx))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, httpretry.ReasonDeadline, events.Reason())
		assert.Len(t, events.Events, 1)
	})
}

// Over HTTP/2, closing a response may wait for another request's write.
// RoundTrip does not wait for the Close of a response that came too late.
func TestAttemptTimeoutBeforeAStuckClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		defer close(free)
		body := stuckCloser{strings.NewReader(""), free}
		base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
			time.Sleep(2 * time.Second)
			return &http.Response{StatusCode: 200, ProtoMajor: 2, Body: body}, nil
		})
		policy := httpretry.Policy{MaxAttempts: 1, AttemptTimeout: 2 * time.Second}
		start := time.Now()
		_, err := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy}).
			RoundTrip(newGet(t))
		require.ErrorContains(t, err, "attempt timed out after 2s")
		assert.LessOrEqual(t, time.Since(start), 2*time.Second+100*time.Millisecond)
	})
}

// stuckCloser is a body whose Close blocks until free is closed.
type stuckCloser struct {
	io.Reader
	free <-chan struct{}
}

func (c stuckCloser) Close() error { <-c.free; return nil }

// Hazard E5: the caller's deadline is not taken for the attempt's timeout.
func TestAttemptTimeoutAndDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		policy := contract.RetryEvery(0)
		policy.AttemptTimeout = time.Second + 1
		base := contract.Play(contract.Step{Status: 200, Takes: time.Hour})
		events := new(contract.Record)
		_, err := contract.Recorded(t, base, policy, events).RoundTrip(newGet(t).WithContext(ctx))
		require.Error(t, err)
		assert.Len(t, base.Attempts(), 1)
		assert.Equal(t, httpretry.ReasonDeadline, events.Reason())
	})
}

// Hazard D6, E6: the context of an attempt ends when the response's body is
// closed or read to its end, or at once if there is no body.
func TestAttemptContextEnds(t *testing.T) {
	for _, tt := range []struct {
		name, method string
		status       int
		body         string
		use          func(*http.Response) error
	}{
		{"HEAD", "HEAD", 200, "", nil},
		{"no content", "GET", 204, "", nil},
		{"not modified", "GET", 304, "", nil},
		{"empty", "GET", 200, "", nil},
		{"read", "GET", 200, "body",
			func(r *http.Response) error { _, err := io.Copy(io.Discard, r.Body); return err }},
		{"closed", "GET", 200, "body", func(r *http.Response) error { return r.Body.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var ctx context.Context
			inner := contract.Play(s503, contract.Step{Status: tt.status, Body: tt.body})
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				ctx = req.Context()
				resp, err := inner.RoundTrip(req)
				if tt.body == "" { // over HTTP/1, with a layer that wraps net/http's http.NoBody
					resp.Body, resp.ProtoMajor = struct{ io.ReadCloser }{http.NoBody}, 1
				}
				if tt.method == "HEAD" {
					resp.ContentLength = 5
				}
				return resp, err
			})
			policy := contract.RetryEvery(0)
			resp, err := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy}).
				RoundTrip(contract.Request(t, tt.method, "http://a.test/", ""))
			require.NoError(t, err)
			if tt.use != nil {
				require.NoError(t, ctx.Err())
				require.NoError(t, tt.use(resp))
			}
			require.ErrorIs(t, ctx.Err(), context.Canceled)
		})
	}
}

// Hazard D6: over HTTP/2 an empty body is not http.NoBody. The context of an
// attempt lives until such a body ends, since there may be trailers yet.
func TestAttemptContextEndsUnclosed(t *testing.T) {
	for _, tt := range []struct {
		method string
		status int
	}{{"HEAD", 200}, {"POST", 204}, {"POST", 304}, {"POST", 200}} {
		synctest.Test(t, func(t *testing.T) {
			var ctx context.Context
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				ctx = req.Context()
				return &http.Response{StatusCode: tt.status, ProtoMajor: 2,
					Body: io.NopCloser(strings.NewReader(""))}, nil
			})
			policy := httpretry.Policy{AttemptTimeout: time.Hour}
			resp, err := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy}).
				RoundTrip(contract.Request(t, tt.method, "http://a.test/", ""))
			require.NoError(t, err)
			require.NoError(t, ctx.Err())
			assert.Equal(t, tt.status, resp.StatusCode)
			time.Sleep(time.Hour)
			synctest.Wait()
			require.NoError(t, ctx.Err(), "there may be trailers yet")
			require.NoError(t, resp.Body.Close())
			synctest.Wait()
			require.ErrorIs(t, ctx.Err(), context.Canceled)
		})
	}
}

// The end of an attempt does not affect the body of the next attempt.
func TestTimeoutsInARow(t *testing.T) {
	policy := contract.RetryEvery(0)
	policy.MaxAttempts = 50
	policy.AttemptTimeout = time.Millisecond
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(req.Body)
		if err == nil && string(body) != "text" {
			t.Errorf("attempt %d read %q", httpretry.Attempt(req.Context()), body)
		}
		_ = req.Body.Close()
		if err != nil && req.Context().Err() == nil {
			t.Errorf("attempt %d: %v", httpretry.Attempt(req.Context()), err)
		}
		<-req.Context().Done()
		return nil, context.Cause(req.Context())
	})
	_, err := contract.With(t, base, policy).
		RoundTrip(contract.Streamed(t, "PUT", "http://a.test/", contract.Counted("text")))
	require.ErrorContains(t, err, "after 50 attempts")
}

// Hazard 0.4, E1, E2: a body of 5 MB that takes a second, and events that
// arrive for a day, outlive the timeout of their attempt, also after a retry.
func TestAttemptTimeoutSparesResponses(t *testing.T) {
	for _, tt := range []struct {
		name    string
		chunks  int
		size    int
		every   time.Duration
		content string
	}{
		{"5 MB in a second", 100, 50_000, 10 * time.Millisecond, "application/octet-stream"},
		{"events for a day", 24, 100, time.Hour, "text/event-stream"},
	} {
		inVirtualTimeAs(t, tt.name,
			func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
				base := start(func(w http.ResponseWriter, r *http.Request) {
					if attemptOf(r) == 1 {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					w.Header().Set("Content-Type", tt.content)
					for i := range tt.chunks {
						_, _ = w.Write(randomBytes(uint64(i), tt.size))
						_ = http.NewResponseController(w).Flush()
						time.Sleep(tt.every)
					}
				})
				policy := contract.RetryEvery(0)
				policy.AttemptTimeout = 100 * time.Millisecond
				began := time.Now()
				resp, err := contract.With(t, base, policy).RoundTrip(newGet(t))
				require.NoError(t, err)
				assert.Less(t, time.Since(began), policy.AttemptTimeout)
				body := contract.ReadBody(t, resp)
				assert.GreaterOrEqual(t, time.Since(began), time.Duration(tt.chunks)*tt.every)
				require.Len(t, body, tt.chunks*tt.size)
				for i := range tt.chunks {
					require.True(t, body[i*tt.size:(i+1)*tt.size] == string(
						randomBytes(uint64(i), tt.size)), "chunk %d", i)
				}
			})
	}
}

// Hazard E5, G2: if the caller's deadline expires right after an attempt's
// timeout, there is no time for a wait. A retry without a wait is still made.
func TestDeadlineAfterAttemptTimeout(t *testing.T) {
	for _, tt := range []struct {
		name, method string
		wait         time.Duration
		attempts     int
		reason       httpretry.Reason
	}{
		{"wait", "GET", time.Millisecond, 1, httpretry.ReasonDeadline},
		{"no wait", "GET", 0, 2, httpretry.ReasonDeadline},
		{"not safe to retry", "POST", 0, 1, httpretry.ReasonNotIdempotent},
	} {
		contract.Bubble(t, tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second+1)
			defer cancel()
			base, events := contract.Play(contract.Step{Status: 200, Takes: time.Hour}),
				new(contract.Record)
			policy := contract.RetryEvery(tt.wait)
			policy.AttemptTimeout = time.Second
			_, err := contract.Recorded(t, base, policy, events).
				RoundTrip(contract.Request(t, tt.method, "http://a.test/", "").WithContext(ctx))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Len(t, base.Attempts(), tt.attempts)
			assert.Equal(t, tt.reason.String(), events.Reason().String())
			assert.Equal(t, time.Second+time.Duration(tt.attempts-1), time.Since(base.Start))
		})
	}
}
