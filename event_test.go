package httpretry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

func TestReasonString(t *testing.T) {
	seen := map[string]bool{}
	for r := range httpretry.ReasonBudget + 1 {
		assert.NotContains(t, r.String(), "Reason(")
		assert.False(t, seen[r.String()], r)
		seen[r.String()] = true
	}
	assert.Equal(t, "budget exhausted", httpretry.ReasonBudget.String())
	assert.Equal(t, "Reason(200)", httpretry.Reason(200).String())
}

func TestErrorType(t *testing.T) {
	for _, tt := range []struct {
		err                error
		timeout, temporary bool
	}{
		{errors.New("x"), false, false},
		{os.ErrDeadlineExceeded, true, true},
		{fmt.Errorf("wrapped: %w", os.ErrDeadlineExceeded), true, true},
		{&net.DNSError{IsTemporary: true}, false, true},
	} {
		err := &httpretry.Error{Attempts: 2, Reason: httpretry.ReasonAttempts, Err: tt.err}
		assert.Equal(t, tt.timeout, err.Timeout(), tt.err)
		assert.Equal(t, tt.temporary, err.Temporary(), tt.err)
		assert.ErrorIs(t, err, tt.err)
	}
}

// logged returns a logger without times, and what it has written.
func logged() (*slog.Logger, *bytes.Buffer) {
	var buf bytes.Buffer
	return slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})), &buf
}

func TestLogEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, out := logged()
		for _, tt := range []struct {
			method string
			steps  []step
			want   string
		}{
			{"GET", []step{status(200)}, ""},
			{"GET", []step{status(404)}, ""},
			{"", []step{status(503), status(200)},
				"level=INFO msg=\"retrying request\" method=GET url=http://a.test/path attempt=1 elapsed=0s status=503 wait=1s\n"},
			{"POST", []step{fails(errReset)},
				"level=WARN msg=\"gave up on request\" method=POST url=http://a.test/path attempt=1 elapsed=0s error=\"read tcp: connection reset by peer\" reason=\"not idempotent\"\n"},
		} {
			out.Reset()
			resp, err := contract.New(t, httpretry.Config{Base: play(tt.steps...), Policy: every(time.Second), Observe: httpretry.LogEvents(logger)}).
				RoundTrip(request(t, tt.method, "http://a.test/path", ""))
			if err == nil {
				finish(t, resp)
			}
			assert.Equal(t, tt.want, out.String())
		}
	})
}

func TestLogEventsDefaults(t *testing.T) {
	logger, out := logged()
	previous := slog.Default()
	slog.SetDefault(logger)
	t.Cleanup(func() { slog.SetDefault(previous) })
	e := httpretry.Event{Request: request(t, "GET", "http://a.test/", ""), Attempt: 1}
	httpretry.LogEvents(nil)(t.Context(), e)
	assert.Contains(t, out.String(), "retrying request")

	out.Reset()
	quiet := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	httpretry.LogEvents(quiet)(t.Context(), e)
	assert.Empty(t, out.String())
}

// Hazard H5, H6: no secret and no control character reaches a log, an error or
// an event's text.
func TestNoSecrets(t *testing.T) {
	const secret = "hunter2"
	logger, out := logged()
	base := baseFunc(func(req *http.Request) (*http.Response, error) {
		return nil, errors.New("proxy says: \x1b[31mgo away\r\nlevel=ERROR\u2028msg=forged")
	})
	for _, method := range []string{"GET", "POST", "EVIL\nMETHOD"} {
		req := request(t, "GET", "http://"+secret+":"+secret+"@a.test/path?token="+secret+"#"+secret, "")
		req.Method = method
		for _, name := range []string{"Authorization", "Cookie", "X-Api-Key"} {
			req.Header.Set(name, secret)
		}
		policy := every(0)
		policy.NewKey = func(*http.Request) string { return secret }
		_, err := contract.New(t, httpretry.Config{Base: base, Policy: policy, Observe: httpretry.LogEvents(logger)}).RoundTrip(req)
		require.Error(t, err)
		assert.NotContains(t, err.Error(), secret)
	}
	assert.NotContains(t, out.String(), secret)
	for line := range strings.SplitSeq(strings.TrimSpace(out.String()), "\n") {
		assert.True(t, strings.HasPrefix(line, "level=INFO msg=\"retrying") || strings.HasPrefix(line, "level=WARN msg=\"gave up"), line)
		assert.NotContains(t, line, "\x1b")
		assert.NotContains(t, line, "\u2028")
		assert.NotContains(t, line, "\r")
	}
	assert.Contains(t, out.String(), "http://a.test/path")
}

// An event's response can be looked at; its body is the caller's.
// Hazard K10: an observer is given a nil response or a nil error.
func TestEventResponse(t *testing.T) {
	var statuses []int
	cfg := httpretry.Config{
		Base:   play(status(503), fails(errReset), status(200)),
		Policy: every(0),
		Observe: func(_ context.Context, e httpretry.Event) {
			if e.Response != nil {
				statuses = append(statuses, e.Response.StatusCode)
			} else {
				statuses = append(statuses, 0)
			}
		},
	}
	resp, err := contract.New(t, cfg).RoundTrip(request(t, "GET", "http://a.test/", ""))
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, "body of 200", string(body))
	assert.Equal(t, []int{503, 0, 200}, statuses)
}
