package httpretry_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// A caller sends a request that fails, and then another one.
func TestLogEventsOfACallerThatRetries(t *testing.T) {
	type send struct {
		method, url string
		otherCtx    bool
		status      int
	}
	get := send{"GET", "http://a.test/x?token=secret", false, 503}
	success, missing, post, other, elsewhere := get, get, get, get, get
	success.status, missing.status = 200, 404
	post.method = "POST"
	other.otherCtx = true
	elsewhere.url = "http://a.test/y"
	const seconds = time.Second
	for _, tt := range []struct {
		name          string
		first, second send
		wait          time.Duration
		level         slog.Level
		want          string // "" or after how long
	}{
		{"the same", get, get, 2 * seconds, slog.LevelDebug, "2s"},
		{"at once", get, get, 0, slog.LevelDebug, "0s"},
		{"a request that is not retried here", post, post, seconds, slog.LevelDebug, ""},
		{"the longest wait", get, get, 10 * seconds, slog.LevelDebug, "10s"},
		{"a longer wait", get, get, 10*seconds + 1, slog.LevelDebug, ""},
		{"another method", get, post, seconds, slog.LevelDebug, ""},
		{"another URL", get, elsewhere, seconds, slog.LevelDebug, ""},
		{"another context", get, other, seconds, slog.LevelDebug, ""},
		{"after a success", success, get, seconds, slog.LevelDebug, ""},
		{"after a permanent failure", missing, get, seconds, slog.LevelDebug, ""},
		{"a second that succeeds", get, success, seconds, slog.LevelDebug, ""},
		{"level Info", get, get, seconds, slog.LevelInfo, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				logger := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: tt.level}))
				policy := contract.RetryEvery(time.Millisecond)
				policy.MaxAttempts = 2
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var status int
				base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					return contract.Play(contract.Status(status)).RoundTrip(req)
				})
				transport := contract.New(t, httpretry.Config{
					Base: base, Policy: policy, Observe: httpretry.LogEvents(logger)})
				for _, s := range []send{tt.first, tt.second} {
					ctx := ctx
					if s.otherCtx {
						ctx = t.Context()
					}
					req := contract.Request(t, s.method, s.url, "").WithContext(ctx)
					status = s.status
					contract.Send(t, transport, req)
					time.Sleep(tt.wait)
				}
				if tt.want == "" {
					assert.NotContains(t, out.String(), "caller")
					return
				}
				const hint = `hint="its attempts multiply with those of httpretry"`
				assert.Equal(t, 1, strings.Count(out.String(), "caller"), "once for each request")
				assert.Contains(t, out.String(), `level=DEBUG msg="the caller seems to retry" `+
					"method="+tt.second.method+" url=http://a.test/x?REDACTED after="+tt.want+" "+hint)
				assert.NotContains(t, out.String(), "secret")
			})
		})
	}
}

// A request that began before another one failed is not its retry.
func TestLogEventsOfConcurrentRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			time.Sleep(time.Second)
			return contract.Play(contract.Status(503)).RoundTrip(req)
		})
		policy := contract.RetryEvery(0)
		policy.MaxAttempts = 2
		transport := contract.New(t, httpretry.Config{
			Base: base, Policy: policy, Observe: httpretry.LogEvents(logger)})
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Second / 2)
				resp, err := transport.RoundTrip(contract.Request(t, "GET", "http://a.test/", ""))
				if assert.NoError(t, err) {
					contract.ReadBody(t, resp)
				}
			})
		}
		wg.Wait()
		assert.Equal(t, 2, strings.Count(out.String(), "gave up"))
		assert.NotContains(t, out.String(), "caller")
	})
}
