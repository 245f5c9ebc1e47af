package policies_test

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/policies"
)

// answer is what a service says to one request.
type answer struct {
	status int
	header map[string]string
}

func say(status int, header ...string) answer {
	a := answer{status, map[string]string{}}
	for i := 0; i < len(header); i += 2 {
		a.header[header[i]] = header[i+1]
	}
	return a
}

// in returns a header's value for a reset that is so far away.
func in(wait time.Duration) string { return strconv.FormatInt(time.Now().Add(wait).Unix(), 10) }

// exchange sends one request under a policy to a service that gives the
// answers in turn and then 200, in virtual time. It returns the last status,
// the keys of the requests that arrived, and the time it took.
func exchange(t *testing.T, policy httpretry.Policy, method, path string, answers ...answer) (status int, keys []string, took time.Duration) {
	t.Helper()
	base := faults.Pipe(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n := len(keys)
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		if n < len(answers) {
			for name, value := range answers[n].header {
				w.Header().Set(name, value)
			}
			w.WriteHeader(answers[n].status)
		}
	})
	req, err := http.NewRequestWithContext(t.Context(), method, "http://service.test"+path, strings.NewReader("{}"))
	require.NoError(t, err)
	start := time.Now()
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, keys, time.Since(start)
}

func TestGitHub(t *testing.T) {
	for _, tt := range []struct {
		name     string
		method   string
		answer   func() answer
		status   int
		requests int
		atLeast  time.Duration
	}{
		{"hourly limit, resets soon", "GET", func() answer { return say(403, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", in(30*time.Second)) }, 200, 2, 30 * time.Second},
		{"hourly limit as 429", "GET", func() answer { return say(429, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", in(30*time.Second)) }, 200, 2, 30 * time.Second},
		{"hourly limit, resets late", "GET", func() answer { return say(403, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", in(time.Hour)) }, 403, 1, 0},
		{"secondary limit", "GET", func() answer { return say(403, "X-RateLimit-Remaining", "4000", "Retry-After", "60") }, 200, 2, time.Minute},
		{"secondary limit as 429", "GET", func() answer { return say(429, "Retry-After", "60") }, 200, 2, time.Minute},
		{"secondary limit, nothing said", "GET", func() answer { return say(429, "X-RateLimit-Remaining", "4000") }, 429, 1, 0},
		{"no permission", "GET", func() answer { return say(403, "X-RateLimit-Remaining", "4000", "X-RateLimit-Reset", in(time.Minute)) }, 403, 1, 0},
		{"secondary limit, POST", "POST", func() answer { return say(403, "Retry-After", "60") }, 200, 2, time.Minute},
		{"bad gateway, POST", "POST", func() answer { return say(502) }, 502, 1, 0},
		{"bad gateway", "GET", func() answer { return say(502) }, 200, 2, 0},
		{"not found", "GET", func() answer { return say(404) }, 404, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(10 * 365 * 24 * time.Hour) // a bubble's time begins in 2000, which no epoch of a header can be
				status, keys, took := exchange(t, policies.GitHub(), tt.method, "/repos/a/b", tt.answer())
				assert.Equal(t, tt.status, status)
				assert.Len(t, keys, tt.requests)
				assert.GreaterOrEqual(t, took, tt.atLeast-time.Second, "the reset counts in whole seconds")
			})
		})
	}
}

func TestStripe(t *testing.T) {
	for _, tt := range []struct {
		method   string
		answer   answer
		status   int
		requests int
	}{
		{"POST", say(503), 200, 2},
		{"POST", say(429), 200, 2},
		{"POST", say(409), 200, 2},
		{"POST", say(400, "Stripe-Should-Retry", "true"), 200, 2},
		{"POST", say(500, "Stripe-Should-Retry", "false"), 500, 1},
		{"POST", say(402), 402, 1},
		{"GET", say(400, "Stripe-Should-Retry", "true"), 200, 2},
		{"GET", say(409), 409, 1},
		{"DELETE", say(500), 200, 2},
	} {
		t.Run(fmt.Sprintf("%s/%v", tt.method, tt.answer), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				status, keys, _ := exchange(t, policies.Stripe(), tt.method, "/v1/charges", tt.answer)
				assert.Equal(t, tt.status, status)
				require.Len(t, keys, tt.requests)
				for _, key := range keys {
					assert.Equal(t, keys[0], key)
					assert.Equal(t, tt.method == "POST", key != "")
				}
			})
		})
	}
}

func TestOpenAI(t *testing.T) {
	for _, tt := range []struct {
		name     string
		path     string
		answer   answer
		status   int
		requests int
		atMost   time.Duration
	}{
		{"overloaded", "/v1/chat/completions", say(503), 200, 2, 10 * time.Second},
		{"told when", "/v1/embeddings", say(429, "Retry-After-Ms", "20", "Retry-After", "1"), 200, 2, 30 * time.Second},
		{"told not to", "/v1/chat/completions", say(429, "X-Should-Retry", "false"), 429, 1, 0},
		{"told to", "/v1/embeddings", say(400, "X-Should-Retry", "true"), 200, 2, 10 * time.Second},
		{"locked", "/v1/moderations", say(409), 200, 2, 10 * time.Second},
		{"locked, told not to", "/v1/moderations", say(409, "X-Should-Retry", "false"), 409, 1, 0},
		{"a gateway's path", "/openai/deployments/gpt/chat/completions", say(500), 200, 2, 10 * time.Second},
		{"a job", "/v1/fine_tuning/jobs", say(503), 503, 1, 0},
		{"a file", "/v1/files", say(503), 503, 1, 0},
		{"a batch that is refused", "/v1/batches", say(429), 200, 2, 30 * time.Second},
		{"a batch that is locked", "/v1/batches", say(409), 409, 1, 0},
		{"a response that is stored", "/v1/responses", say(503), 503, 1, 0},
		{"a job, told to", "/v1/batches", say(500, "X-Should-Retry", "true"), 500, 1, 0},
		{"bad request", "/v1/embeddings", say(400), 400, 1, 0},
		{"without a chat", "/v1/completions/", say(503), 200, 2, 10 * time.Second},
		{"an image", "/v1/images/generations", say(503), 200, 2, 10 * time.Second},
		{"an edited image", "/v1/images/edits", say(503), 200, 2, 10 * time.Second},
		{"another image", "/v1/images/variations", say(503), 200, 2, 10 * time.Second},
		{"speech", "/v1/audio/speech", say(503), 200, 2, 10 * time.Second},
		{"a transcription", "/v1/audio/transcriptions", say(503), 200, 2, 10 * time.Second},
		{"a translation", "/v1/audio/translations", say(503), 200, 2, 10 * time.Second},
		{"a stored completion that is changed", "/v1/chat/completions/c", say(503), 503, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				status, keys, took := exchange(t, policies.OpenAI(), "POST", tt.path, tt.answer)
				assert.Equal(t, tt.status, status)
				assert.Len(t, keys, tt.requests)
				assert.LessOrEqual(t, took, tt.atMost)
			})
		})
	}
}

func TestAWS(t *testing.T) {
	for _, tt := range []struct {
		method   string
		answer   answer
		status   int
		requests int
	}{
		{"GET", say(400, "X-Amzn-ErrorType", "ThrottlingException"), 200, 2},
		{"GET", say(400, "X-Amzn-ErrorType", "ThrottlingException:http://internal.amazon.com/coral/com.amazon.coral.availability/"), 200, 2},
		{"GET", say(400, "X-Amzn-ErrorType", "aws.protocoltests.restjson#TooManyRequestsException"), 200, 2},
		{"GET", say(400, "X-Amzn-ErrorType", "ValidationException"), 400, 1},
		{"GET", say(400), 400, 1},
		{"GET", say(503), 200, 2},
		{"POST", say(400, "X-Amzn-ErrorType", "ThrottlingException"), 400, 1},
		{"PUT", say(400, "X-Amzn-ErrorType", "SlowDown"), 200, 2},
	} {
		t.Run(fmt.Sprintf("%s/%v", tt.method, tt.answer), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				status, keys, _ := exchange(t, policies.AWS(), tt.method, "/", tt.answer)
				assert.Equal(t, tt.status, status)
				assert.Len(t, keys, tt.requests)
			})
		})
	}
}

// All are valid, whatever else is set in them.
func TestValid(t *testing.T) {
	for name, policy := range map[string]httpretry.Policy{
		"GitHub": policies.GitHub(), "Stripe": policies.Stripe(), "OpenAI": policies.OpenAI(), "AWS": policies.AWS(),
	} {
		require.NoError(t, policy.Validate(), name)
	}
}

// One credential's limit is not another's, nor that of a host where a credential
// is no part of the request yet.
func TestLimitsAreOfACredential(t *testing.T) {
	for name, policy := range map[string]httpretry.Policy{
		"GitHub": policies.GitHub(), "Stripe": policies.Stripe(), "OpenAI": policies.OpenAI(),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := faults.Pipe(t, func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Authorization") == "Bearer spent" {
						w.Header().Set("Retry-After", "3600")
						w.WriteHeader(http.StatusTooManyRequests)
					}
				})
				policy.Cooldown = httpretry.CooldownFail
				transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
				send := func(authorization string) (int, error) {
					req, err := http.NewRequestWithContext(t.Context(), "GET", "http://service.test/", nil)
					require.NoError(t, err)
					req.Header.Set("Authorization", authorization)
					resp, err := transport.RoundTrip(req)
					if err != nil {
						return 0, err
					}
					return resp.StatusCode, resp.Body.Close()
				}
				for _, token := range []string{"Bearer spent", "Bearer other", ""} {
					status, err := send(token)
					require.NoError(t, err)
					assert.Equal(t, token == "Bearer spent", status == http.StatusTooManyRequests, token)
				}
				_, err := send("Bearer spent")
				var cooling *httpretry.CooldownError
				require.ErrorAs(t, err, &cooling)
				assert.NotContains(t, err.Error(), "spent")
			})
		})
	}
}
