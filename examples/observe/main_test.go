package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
httpretry.request.attempts  method=GET, status_code=200, reason=success               3 in 2 requests
httpretry.request.attempts  method=GET, status_code=429, reason=retry_after_too_long  1 in 1 requests
httpretry.request.attempts  method=GET, status_code=502, reason=attempts_exhausted    3 in 1 requests
httpretry.request.attempts  method=GET, status_code=503, reason=do_not_retry          1 in 1 requests
httpretry.request.attempts  method=POST, status_code=503, reason=not_idempotent       1 in 1 requests
httpretry.retries           method=GET, status_code=502                               2
httpretry.retries           method=GET, status_code=503                               1
httpretry.wait              method=GET                                                3 waits

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
