package httpretry_test

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// Policy.RetryAfter replaces the headers. It is called once for each response
// that is not a success.
func TestRetryAfterOfPolicy(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		wait   time.Duration
		ok     bool
		final  bool // Policy.Classify returns Final, and otherwise Transient
		asked  time.Duration
		spread time.Duration
		calls  int
		reason httpretry.Reason // of the first response
	}{
		{"milliseconds", 503, 1500 * time.Millisecond, true, false,
			1500 * time.Millisecond, 375 * time.Millisecond, 1, httpretry.ReasonNone},
		{"whole seconds", 503, 2 * time.Second, true, false,
			2 * time.Second, time.Second, 1, httpretry.ReasonNone},
		{"a 202 that is not the result", 202, 20 * time.Second, true, false,
			20 * time.Second, 5 * time.Second, 1, httpretry.ReasonNone},
		{"too long", 503, 61 * time.Second, true, false,
			61 * time.Second, 0, 1, httpretry.ReasonRetryAfter},
		{"longer than a century", 503, math.MaxInt64, true, false,
			100 * 365 * 24 * time.Hour, 0, 1, httpretry.ReasonRetryAfter},
		{"none", 503, time.Hour, false, false, 0, 0, 1, httpretry.ReasonNone},
		{"negative", 503, -time.Hour, true, false, 0, 0, 1, httpretry.ReasonNone},
		{"final", 404, time.Second, true, true, time.Second, 0, 1, httpretry.ReasonPermanent},
		{"success", 200, time.Hour, true, true, 0, 0, 0, httpretry.ReasonSuccess},
	} {
		contract.Bubble(t, tt.name, func(t *testing.T) {
			policy, calls, events := contract.RetryEvery(0), 0, new(contract.Record)
			policy.RetryAfter = func(resp *http.Response) (time.Duration, bool) {
				if resp.StatusCode != tt.status || resp.Header.Get("Retry-After") != "30" {
					t.Errorf("asked about %v", resp)
				}
				calls++
				return tt.wait, tt.ok
			}
			policy.Classify = func(
				_ *http.Request, resp *http.Response, _ error,
			) httpretry.Outcome {
				if tt.final || resp.StatusCode == http.StatusNoContent {
					return httpretry.Final
				}
				return httpretry.Transient
			}
			base := contract.Play(
				contract.Status(tt.status, "Retry-After", "30"), contract.Status(204))
			contract.Send(t, contract.New(t, httpretry.Config{
				Base: base, Policy: policy, Observe: events.Observe}), newGet(t))
			assert.Equal(t, tt.calls, calls)
			first := events.Events[0]
			assert.Equal(t, tt.reason, first.Reason)
			assert.Equal(t, tt.asked, first.Asked)
			if tt.reason == httpretry.ReasonNone {
				assert.GreaterOrEqual(t, first.Wait, tt.asked)
				assert.LessOrEqual(t, first.Wait, tt.asked+tt.spread)
			}
		})
	}
}
