package budgets_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/budgets"
)

// allowed returns how many retries in a row the budget of a process allows.
func allowed(of func(int) (httpretry.Budget, string), process int) (n int) {
	budget, origin := of(process)
	for n < 10_000 && budget.Withdraw(context.Background(), failed(origin)) {
		n++
	}
	return n
}

func failed(origin string) httpretry.AttemptResult {
	return httpretry.AttemptResult{
		Origin: origin, Number: 1, Status: http.StatusBadGateway, Outcome: httpretry.Transient}
}

// succeed records n successes of first attempts.
func succeed(b httpretry.Budget, origin string, n int) {
	for range n {
		b.Record(httpretry.AttemptResult{Origin: origin, Number: 1, Status: http.StatusOK}, httpretry.AttemptResult{})
	}
}

// retry records the end of a retry with a status.
func retry(b httpretry.Budget, origin string, status int, outcome httpretry.Outcome) {
	b.Record(httpretry.AttemptResult{Origin: origin, Number: 2, Status: status, Outcome: outcome}, failed(origin))
}

func TestBurst(t *testing.T) {
	const processes = 3000
	for kind, want := range map[string]int{"default": 7, "strict": 7, "shared": 7, "unlimited": 10_000, "aws": 100, "grpc": 4} {
		of, err := budgets.Of(kind, processes, &httpretry.HostBudget{Burst: 7})
		require.NoError(t, err)
		// Those of one table, of the next, and the last.
		for i, p := range []int{0, 1, 1024, processes - 1} {
			n := want
			if kind == "shared" && i > 0 {
				n = 0
			}
			assert.Equal(t, n, allowed(of, p), "%s, process %d", kind, p)
		}
	}
	_, err := budgets.Of("free", 1, new(httpretry.HostBudget))
	assert.ErrorContains(t, err, `budget "free": want one of default, `)
}

// A retry that succeeds cancels its charge and one more, except with Strict.
// The budget of each process is that of a HostBudget of its own.
func TestRetriesThatSucceed(t *testing.T) {
	const last = 2999
	for kind, want := range map[string][2]int{"default": {4, 5}, "strict": {0, 5}, "shared": {4, 0}} {
		of, err := budgets.Of(kind, last+1, new(httpretry.HostBudget))
		require.NoError(t, err)
		own := &httpretry.HostBudget{Strict: kind == "strict"}
		alone := func(int) (httpretry.Budget, string) { return own, "" }
		for _, of := range []func(int) (httpretry.Budget, string){of, alone} {
			require.Equal(t, 5, allowed(of, last))
			budget, origin := of(last)
			for range 2 {
				retry(budget, origin, http.StatusOK, httpretry.Final)
			}
			assert.Equal(t, want[0], allowed(of, last), kind)
		}
		assert.Equal(t, want[1], allowed(of, 0), "%s, another process", kind)
	}
}

func TestTokensComeBack(t *testing.T) {
	aws, err := budgets.Of("aws", 1, nil)
	require.NoError(t, err)
	assert.Equal(t, 100, allowed(aws, 0))
	budget, origin := aws(0)
	budget.Refund(failed(origin))
	assert.Equal(t, 1, allowed(aws, 0), "a retry that is not sent returns its tokens")
	succeed(budget, origin, 10)
	assert.Equal(t, 2, allowed(aws, 0), "ten successes are worth two retries")
	succeed(budget, origin, 4)
	retry(budget, origin, http.StatusBadGateway, httpretry.Transient)
	assert.Zero(t, allowed(aws, 0))
	retry(budget, origin, http.StatusOK, httpretry.Final)
	assert.Equal(t, 2, allowed(aws, 0), "a retry that succeeds returns its tokens, too")

	succeed(budget, origin, 500)
	n := 0
	for budget.Withdraw(context.Background(), httpretry.AttemptResult{Number: 1, Outcome: httpretry.Transient, Timeout: true}) {
		n++
	}
	assert.Equal(t, 50, n, "retries after timeouts cost twice as much")

	grpc, err := budgets.Of("grpc", 1, nil)
	require.NoError(t, err)
	assert.Equal(t, 4, allowed(grpc, 0), "the fifth failure leaves half of the tokens")
	budget, origin = grpc(0)
	succeed(budget, origin, 20)
	assert.Equal(t, 1, allowed(grpc, 0))
}
