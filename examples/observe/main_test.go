package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The whole output, since it is what the example is for.
const want = `What log/slog is told:
level=INFO msg="retrying request" method=GET url=http://embedded.server/flaky?REDACTED attempt=1 status=503 wait=20ms
level=WARN msg="gave up on request" method=POST url=http://embedded.server/flaky attempt=1 status=503 reason="not idempotent"
level=INFO msg="retrying request" method=GET url=http://embedded.server/down attempt=1 status=502 wait=20ms
level=INFO msg="retrying request" method=GET url=http://embedded.server/down attempt=2 status=502 wait=20ms
level=WARN msg="gave up on request" method=GET url=http://embedded.server/down attempt=3 status=502 reason="attempts exhausted"
level=WARN msg="gave up on request" method=GET url=http://embedded.server/refuses attempt=1 status=503 reason="server refused"
level=WARN msg="gave up on request" method=GET url=http://embedded.server/tomorrow attempt=1 status=429 reason="Retry-After too long"

What OpenTelemetry is told, as metrics:
httpretry.request.attempts  method=GET, status_code=200, reason=final                 3 in 2 requests
httpretry.request.attempts  method=GET, status_code=429, reason=Retry-After too long  1 in 1 requests
httpretry.request.attempts  method=GET, status_code=502, reason=attempts exhausted    3 in 1 requests
httpretry.request.attempts  method=GET, status_code=503, reason=server refused        1 in 1 requests
httpretry.request.attempts  method=POST, status_code=503, reason=not idempotent       1 in 1 requests
httpretry.retries           method=GET, status_code=502                               2
httpretry.retries           method=GET, status_code=503                               1
httpretry.wait              method=GET                                                0.06 s in 3 waits

... and as spans, one for each attempt:
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
