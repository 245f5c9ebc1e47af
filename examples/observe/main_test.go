package main

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrydebug"
)

// The whole output of the program.
const want = `The log:
level=INFO msg="retrying request" method=GET url=http://embedded.server/flaky?REDACTED attempt=1 status="503 Service Unavailable" wait=20ms
level=WARN msg="gave up on request" method=POST url=http://embedded.server/flaky attempt=1 status="503 Service Unavailable" hint="the server may have processed it; an Idempotency-Key header, Policy.NewIdempotencyKey or WithIdempotent allows a retry" reason=not_idempotent
level=INFO msg="retrying request" method=GET url=http://embedded.server/down attempt=1 status="502 Bad Gateway" wait=20ms
level=INFO msg="retrying request" method=GET url=http://embedded.server/down attempt=2 status="502 Bad Gateway" wait=20ms
level=WARN msg="gave up on request" method=GET url=http://embedded.server/down attempt=3 status="502 Bad Gateway" hint="Policy.MaxAttempts allows no more attempts" reason=attempts_exhausted
level=WARN msg="gave up on request" method=GET url=http://embedded.server/refuses attempt=1 status="503 Service Unavailable" hint="the server sent X-Should-Retry: false, which a Policy.Classify may ignore" reason=do_not_retry
level=WARN msg="gave up on request" method=GET url=http://embedded.server/tomorrow attempt=1 status="429 Too Many Requests" asked=24h0m0s hint="the server asked for a longer wait than Policy.MaxRetryAfter" reason=retry_after_too_long

The metrics:
httpretry_request_attempts_count{http_request_method="GET",http_response_status_code="200",httpretry_reason="success"} 2
httpretry_request_attempts_count{http_request_method="GET",http_response_status_code="429",httpretry_reason="retry_after_too_long"} 1
httpretry_request_attempts_count{http_request_method="GET",http_response_status_code="502",httpretry_reason="attempts_exhausted"} 1
httpretry_request_attempts_count{http_request_method="GET",http_response_status_code="503",httpretry_reason="do_not_retry"} 1
httpretry_request_attempts_count{http_request_method="POST",http_response_status_code="503",httpretry_reason="not_idempotent"} 1
httpretry_retries_total{http_request_method="GET",http_response_status_code="502",httpretry_outcome="transient"} 2
httpretry_retries_total{http_request_method="GET",http_response_status_code="503",httpretry_outcome="transient"} 1

The spans, one for each attempt:
HTTP GET   status 200  resend_count -
HTTP GET   status 503  resend_count -
HTTP GET   status 200  resend_count 1
HTTP POST  status 503  resend_count -
HTTP GET   status 502  resend_count -
HTTP GET   status 502  resend_count 1
HTTP GET   status 502  resend_count 2
HTTP GET   status 503  resend_count -
HTTP GET   status 429  resend_count -
`

func TestRun(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out))
	assert.Equal(t, want, out.String())
}

// TestOutages checks that LogEvents at level Warn and the page of retrydebug show
// each kind of a total outage, and no caller that has left.
func TestOutages(t *testing.T) {
	for _, host := range append([]string{"leaves hangs.test"}, hosts...) {
		t.Run(host, func(t *testing.T) {
			warnings := new(strings.Builder)
			transport, stop, err := newTransport(httpretry.LogEvents(slog.New(slog.NewTextHandler(warnings, nil))))
			require.NoError(t, err)
			defer stop()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			host, leaves := strings.CutPrefix(host, "leaves ")
			if leaves {
				time.AfterFunc(20*time.Millisecond, cancel)
			}
			send(ctx, transport, host)
			want := 1
			if leaves || host == "works.test" {
				want = 0
			}
			assert.Equal(t, want, strings.Count(warnings.String(), "level=WARN"), "%s", warnings)
			page := httptest.NewRecorder()
			retrydebug.Handler(transport).ServeHTTP(page, httptest.NewRequest("GET", "/", nil))
			trouble := regexp.MustCompile(`1 (failing|some fail|cooling down)</title>`)
			assert.Equal(t, want == 1, trouble.MatchString(page.Body.String()))
		})
	}
}
