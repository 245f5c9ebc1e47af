package recipes_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/policies"
)

// TestStartBeforeTheUpstream checks that one request with policies.Background
// waits for an upstream that starts later, as in choosing.md, and that those
// after it do not fail.
func TestStartBeforeTheUpstream(t *testing.T) {
	const down = 5 * time.Second
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			start, sends := time.Now(), 0
			client := newClient(t, httpretry.Config{Base: roundTripFunc(func(req *http.Request) (*http.Response, error) {
				sends++
				if time.Since(start) < down {
					return nil, contract.ErrRefused
				}
				return respond(req, http.StatusOK)
			})})
			ctx := httpretry.WithPolicy(t.Context(), policies.Background(time.Minute))
			resp, err := client.Do(request(t, "GET", "").WithContext(ctx))
			require.NoError(t, err)
			assert.Equal(t, http.StatusOK, resp.StatusCode)
			assert.LessOrEqual(t, sends, 5)
			// The waits before it are up to 1, 2, 4 and 8 seconds.
			assert.Less(t, time.Since(start), down+8*time.Second)
			assert.Equal(t, http.StatusOK, status(t, client, request(t, "GET", "")))
		})
	}
}

var errShutdown = errors.New("the process shuts down")

// graceful returns a context that lasts for grace after ctx is done. Requests
// that have begun may end in that time, with their retries.
func graceful(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	requests, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(grace):
		case <-requests.Done():
		}
		cancel(errShutdown)
	})
	return requests, func() {
		stop()
		cancel(nil)
	}
}

// work sends jobs until ctx is done. It returns the jobs that are not done.
func work(ctx context.Context, client *http.Client, jobs []*http.Request) []*http.Request {
	requests, cancel := graceful(ctx, 10*time.Second)
	defer cancel()
	defer client.CloseIdleConnections()
	for i, job := range jobs {
		if ctx.Err() != nil {
			return jobs[i:]
		}
		resp, err := client.Do(job.WithContext(requests))
		if errors.Is(err, errShutdown) {
			return jobs[i:] // canceled, maybe while it waited for a retry
		}
		if err != nil {
			continue // log it
		}
		resp.Body.Close()
	}
	return nil
}

// TestShutdown sends three jobs to a server that fails until some time. The
// process has a signal after five seconds. In a program, ctx is that of
// signal.NotifyContext.
func TestShutdown(t *testing.T) {
	for _, tt := range []struct {
		name  string
		until time.Duration // from when the server answers 200
		left  int
		most  time.Duration // until work returns
	}{
		{"before the signal", 0, 0, 0},
		{"within the grace", 7 * time.Second, 2, 15 * time.Second},
		{"after the grace", time.Hour, 3, 15 * time.Second},
	} {
		contract.Bubble(t, tt.name, func(t *testing.T) {
			start := time.Now()
			var reasons []httpretry.Reason
			policy := policies.Background(time.Hour)
			policy.AttemptTimeout = time.Minute
			client := newClient(t, httpretry.Config{
				Policy: policy,
				Base: roundTripFunc(func(req *http.Request) (*http.Response, error) {
					if time.Since(start) < tt.until {
						return respond(req, http.StatusServiceUnavailable)
					}
					return respond(req, http.StatusOK)
				}),
				Observe: func(_ context.Context, e httpretry.Event) {
					if e.Reason != httpretry.ReasonNone {
						reasons = append(reasons, e.Reason)
					}
				},
			})
			ctx, signal := context.WithCancel(t.Context())
			time.AfterFunc(5*time.Second, signal)
			left := work(ctx, client, []*http.Request{
				request(t, "PUT", "1"), request(t, "PUT", "2"), request(t, "PUT", "3"),
			})
			assert.Len(t, left, tt.left)
			assert.LessOrEqual(t, time.Since(start), tt.most)
			if tt.left == 3 {
				assert.Equal(t, []httpretry.Reason{httpretry.ReasonCanceled}, reasons)
				assert.Equal(t, tt.most, time.Since(start))
			}
			synctest.Wait()
		})
	}
}
