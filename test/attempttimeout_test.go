package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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
		gaveUp   string
		reason   httpretry.Reason
	}{
		{"GET", 5, "5 attempts (attempts_exhausted)", httpretry.ReasonAttempts},
		{"POST", 1, "1 attempt (not_idempotent)", httpretry.ReasonNotIdempotent},
	} {
		contract.Bubble(t, tt.method, func(t *testing.T) {
			base := contract.Play(contract.Step{Status: 200, Takes: time.Hour})
			policy := contract.RetryEvery(time.Second)
			policy.AttemptTimeout = 2 * time.Second
			err := sendFails(t, contract.With(t, base, policy), newRequest(t, tt.method, ""))
			require.EqualError(t, err, "httpretry: gave up after "+tt.gaveUp+
				": attempt timed out after 2s; hint: "+tt.reason.Hint())
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
		uploads          int
	}{{time.Second, 0, 2}, {0, time.Second, 1}} {
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
			transport := contract.With(t, base, policy)
			if tt.attempt > 0 {
				require.ErrorContains(t, sendFails(t, transport, req), "attempt timed out after 1s")
			} else {
				assert.Equal(t, 200, contract.Send(t, transport, req).StatusCode)
			}
			assert.Equal(t, tt.uploads, uploads)
		})
	}
}

// Hazard E1: response headers that arrive exactly when the timeout expires are
// too late. Over HTTP/2, closing a response may wait for another request's write.
// RoundTrip does not wait for that.
func TestAttemptTimeoutAtTheHeaders(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			free := make(chan struct{})
			defer close(free)
			body := contract.Counted("")
			base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
				time.Sleep(2 * time.Second)
				resp := &http.Response{StatusCode: 200, ProtoMajor: 2, Body: body}
				if stuck {
					resp.Body = stuckCloser{body, free}
				}
				return resp, nil
			})
			policy := httpretry.Policy{MaxAttempts: 1, AttemptTimeout: 2 * time.Second}
			start := time.Now()
			err := sendFails(t, unchecked(t, base, policy), newGet(t))
			require.EqualError(t, err,
				"httpretry: gave up after 1 attempt (retries_disabled): attempt timed out after "+
					"2s; hint: "+httpretry.ReasonDisabled.Hint())
			assert.LessOrEqual(t, time.Since(start), 2*time.Second+100*time.Millisecond)
			if !stuck {
				assert.EqualValues(t, 1, body.Closes())
			}
		})
	}
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
				err := sendFails(t, contract.With(t, base, policy), newRequest(t, method, "text"))
				assert.Equal(t, want, sends)
				require.ErrorContains(t, err, "attempt timed out after 2s: layer: limiter: ")
				var e *httpretry.Error
				require.ErrorAs(t, err, &e)
				assert.Equal(t, want, e.Attempts)
				assert.True(t, e.Timeout())
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NotErrorIs(t, err, context.Canceled, "the caller has not canceled")
				require.ErrorIs(t, err, io.ErrNoProgress, "of the limiter")
				require.ErrorIs(t, err, errLimiter)
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
			return nil, errors.Join(unprocessedError{}, contract.ErrReset)
		})
		policy := contract.RetryEvery(time.Second)
		policy.AttemptTimeout = time.Second
		err := sendFails(t, contract.With(t, base, policy), newRequest(t, "POST", ""))
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
		err := sendFails(t, contract.Recorded(t, base, policy, events),
			newRequest(t, "POST", "").WithContext(ctx))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, httpretry.ReasonDeadline, events.Reason())
		assert.Len(t, events.Events, 1)
	})
}

// stuckCloser is a body whose Close blocks until free is closed.
type stuckCloser struct {
	io.Reader
	free <-chan struct{}
}

func (c stuckCloser) Close() error { <-c.free; return nil }

// Hazard D6, E6: the context of an attempt ends when the response's body is
// closed or read to its end, or at once if there is no body. Over HTTP/2 an empty
// body is not http.NoBody. The context lives until such a body ends, since there
// may be trailers yet.
func TestAttemptContextEnds(t *testing.T) {
	readToEnd := func(r *http.Response) error { _, err := io.Copy(io.Discard, r.Body); return err }
	closeBody := func(r *http.Response) error { return r.Body.Close() }
	for _, tt := range []struct {
		method        string
		major, status int
		body          string
		use           func(*http.Response) error
	}{
		{"HEAD", 1, 200, "", nil},
		{"GET", 1, 204, "", nil},
		{"GET", 1, 304, "", nil},
		{"GET", 1, 200, "", nil},
		{"GET", 1, 200, "read", readToEnd},
		{"GET", 1, 200, "closed", closeBody},
		{"HEAD", 2, 200, "", closeBody},
		{"POST", 2, 204, "", closeBody},
		{"POST", 2, 304, "", closeBody},
		{"POST", 2, 200, "", closeBody},
	} {
		name := fmt.Sprintf("HTTP/%d/%s/%d/%s", tt.major, tt.method, tt.status, tt.body)
		contract.Bubble(t, name, func(t *testing.T) {
			var ctx context.Context
			inner := contract.Play(s425, contract.Step{Status: tt.status, Body: tt.body})
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				ctx = req.Context()
				resp, err := inner.RoundTrip(req)
				resp.ProtoMajor = tt.major
				if tt.body == "" { // over HTTP/1, with a layer that wraps net/http's http.NoBody
					resp.Body = struct{ io.ReadCloser }{http.NoBody}
				}
				if tt.method == "HEAD" && tt.major == 1 {
					resp.ContentLength = 5
				}
				return resp, err
			})
			policy := contract.RetryEvery(0)
			if tt.major == 2 {
				policy.AttemptTimeout = time.Hour
			}
			resp, err := unchecked(t, base, policy).RoundTrip(newRequest(t, tt.method, ""))
			require.NoError(t, err)
			assert.Equal(t, tt.status, resp.StatusCode)
			if tt.use != nil {
				time.Sleep(time.Hour)
				synctest.Wait()
				require.NoError(t, ctx.Err())
				require.NoError(t, tt.use(resp))
			}
			synctest.Wait()
			require.ErrorIs(t, ctx.Err(), context.Canceled)
		})
	}
}

// The end of an attempt does not affect the body of the next attempt.
func TestTimeoutsInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := contract.RetryEvery(0)
		policy.AttemptTimeout, policy.MaxAttempts = time.Millisecond, 5000
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			body, err := io.ReadAll(req.Body)
			assert.NoError(t, err)
			assert.Equal(t, "text", string(body))
			_ = req.Body.Close()
			<-req.Context().Done()
			return nil, context.Cause(req.Context())
		})
		err := sendFails(t, contract.With(t, base, policy),
			contract.Streamed(t, "PUT", "http://a.test/", contract.Counted("text")))
		require.ErrorContains(t, err, "after 5000 attempts")
	})
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
				policy := withTimeout(100 * time.Millisecond)
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
// timeout, there is no time for a wait. A retry without a wait is still made. The
// caller's deadline is not taken for the attempt's timeout.
func TestDeadlineAfterAttemptTimeout(t *testing.T) {
	for _, tt := range []struct {
		name, method string
		after        time.Duration // the attempt's timeout
		wait         time.Duration
		attempts     int
		reason       httpretry.Reason
	}{
		{"wait", "GET", 1, time.Millisecond, 1, httpretry.ReasonDeadline},
		{"no wait", "GET", 1, 0, 2, httpretry.ReasonDeadline},
		{"not safe to retry", "POST", 1, 0, 1, httpretry.ReasonNotIdempotent},
		{"before the timeout", "GET", -1, 0, 1, httpretry.ReasonDeadline},
	} {
		contract.Bubble(t, tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second+tt.after)
			defer cancel()
			base, events := contract.Play(contract.Step{Status: 200, Takes: time.Hour}),
				new(contract.Record)
			policy := contract.RetryEvery(tt.wait)
			policy.AttemptTimeout = time.Second
			err := sendFails(t, contract.Recorded(t, base, policy, events),
				newRequest(t, tt.method, "").WithContext(ctx))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Len(t, base.Attempts(), tt.attempts)
			assert.Equal(t, tt.reason, events.Reason())
			assert.Equal(t, time.Second+min(tt.after, time.Duration(tt.attempts-1)),
				time.Since(base.Start))
		})
	}
}
