package budgets_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/budgets"
)

var failed = httpretry.AttemptResult{Number: 1, Status: http.StatusBadGateway, Outcome: httpretry.Transient}

func allowed(b httpretry.Budget) int { return allowedAfter(b, failed) }

func allowedAfter(b httpretry.Budget, last httpretry.AttemptResult) (n int) {
	for n < 10_000 && b.Withdraw(context.Background(), last) {
		n++
	}
	return n
}

func of(t *testing.T, kind string, h *httpretry.HostBudget) (first, second httpretry.Budget) {
	t.Helper()
	next, err := budgets.Of(kind, h)
	require.NoError(t, err)
	return next(), next()
}

func record(b httpretry.Budget, n, status int, outcome httpretry.Outcome, charged httpretry.AttemptResult) {
	for range n {
		b.Record(httpretry.AttemptResult{Number: 1 + charged.Number, Status: status, Outcome: outcome}, charged)
	}
}

func succeed(b httpretry.Budget, n int) {
	record(b, n, http.StatusOK, httpretry.Final, httpretry.AttemptResult{})
}

func TestBurst(t *testing.T) {
	for kind, want := range map[string]int{
		"default": 7, "strict": 7, "shared": 7, "unlimited": 10_000, "aws": 100, "aws2026": 35, "grpc": 10_000, "proxy": 0,
	} {
		first, second := of(t, kind, &httpretry.HostBudget{Burst: 7})
		assert.Equal(t, want, allowed(first), kind)
		if kind == "shared" {
			want = 0
		}
		assert.Equal(t, want, allowed(second), "%s: another process", kind)
	}
	_, err := budgets.Of("free", new(httpretry.HostBudget))
	assert.ErrorContains(t, err, `budget "free": want one of default, `)
}

func TestStrict(t *testing.T) {
	for kind, want := range map[string]int{"default": 2, "strict": 0} {
		b, _ := of(t, kind, new(httpretry.HostBudget))
		require.Equal(t, 5, allowed(b))
		record(b, 1, http.StatusOK, httpretry.Final, failed)
		assert.Equal(t, want, allowed(b), kind)
	}
}

func TestTokensComeBack(t *testing.T) {
	aws, _ := of(t, "aws", nil)
	assert.Equal(t, 100, allowed(aws))
	aws.Refund(failed)
	assert.Equal(t, 1, allowed(aws), "a retry that is not sent returns its tokens")
	succeed(aws, 10)
	assert.Equal(t, 2, allowed(aws), "ten successes are worth two retries")
	record(aws, 1, http.StatusBadGateway, httpretry.Transient, failed)
	assert.Zero(t, allowed(aws))
	record(aws, 1, http.StatusOK, httpretry.Final, failed)
	assert.Equal(t, 1, allowed(aws), "a retry that succeeds returns its tokens, too")

	aws, _ = of(t, "aws", nil)
	assert.Equal(t, 50, allowedAfter(aws, httpretry.AttemptResult{Timeout: true}))
	aws, _ = of(t, "aws2026", nil)
	assert.Equal(t, 100, allowedAfter(aws, httpretry.AttemptResult{Status: http.StatusTooManyRequests}))
}

func TestThrottle(t *testing.T) {
	b, _ := of(t, "grpc", nil)
	record(b, 4, http.StatusBadGateway, httpretry.Transient, httpretry.AttemptResult{})
	assert.Equal(t, 10_000, allowed(b))
	record(b, 1, http.StatusBadGateway, httpretry.Transient, failed)
	assert.Zero(t, allowed(b), "the fifth failure leaves half of the tokens")
	succeed(b, 1)
	assert.Equal(t, 10_000, allowed(b))
}

// A proxy allows a fifth of the attempts of the last ten seconds.
func TestProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := of(t, "proxy", nil)
		succeed(b, 20)
		assert.Equal(t, 4, allowed(b))
		b.Refund(failed)
		assert.Equal(t, 1, allowed(b))
		time.Sleep(9 * time.Second)
		succeed(b, 5)
		assert.Equal(t, 1, allowed(b))
		time.Sleep(time.Second)
		assert.Zero(t, allowed(b), "the retry of a second ago counts")
	})
}
