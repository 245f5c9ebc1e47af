package contract

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry"
)

// Failure is the result of a first attempt that failed, after which a retry
// costs 1.
func Failure(origin string) httpretry.AttemptResult {
	return httpretry.AttemptResult{Origin: origin, Number: 1,
		Status: http.StatusServiceUnavailable, Outcome: httpretry.Transient}
}

// Succeed records a success in b, that of a first attempt, or if charged is
// true that of the retry after a Failure.
func Succeed(b httpretry.Budget, origin string, charged bool) {
	ended := httpretry.AttemptResult{Origin: origin, Number: 1, Status: http.StatusOK}
	if !charged {
		b.Record(ended, httpretry.AttemptResult{})
		return
	}
	ended.Number = 2
	b.Record(ended, Failure(origin))
}

// Audit is a budget that keeps the account of another one, and notes calls that
// break the rules of httpretry.Budget. It may be used concurrently.
type Audit struct {
	httpretry.Budget

	mu       sync.Mutex
	ended    int                       // calls of Record
	open     []httpretry.AttemptResult // Withdraw has returned true for them
	mistakes []string
}

// Withdraw implements httpretry.Budget.
func (a *Audit) Withdraw(ctx context.Context, last httpretry.AttemptResult) bool {
	allowed := a.Budget.Withdraw(ctx, last)
	a.mu.Lock()
	defer a.mu.Unlock()
	if last.Succeeded() || last.Number < 1 {
		a.mistakes = append(a.mistakes, fmt.Sprintf("a retry after %+v", last))
	}
	if allowed {
		a.open = append(a.open, last)
	}
	return allowed
}

// Refund implements httpretry.Budget.
func (a *Audit) Refund(last httpretry.AttemptResult) {
	a.close(last)
	a.Budget.Refund(last)
}

// Record implements httpretry.Budget.
func (a *Audit) Record(ended, charged httpretry.AttemptResult) {
	if !reflect.ValueOf(charged).IsZero() {
		a.close(charged)
	}
	a.mu.Lock()
	a.ended++
	a.mu.Unlock()
	a.Budget.Record(ended, charged)
}

// close removes the charge for the retry that follows last.
func (a *Audit) close(last httpretry.AttemptResult) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, open := range a.open {
		if reflect.DeepEqual(open, last) {
			a.open = append(a.open[:i], a.open[i+1:]...)
			return
		}
	}
	a.mistakes = append(a.mistakes, fmt.Sprintf("no charge for a retry after %+v", last))
}

// Check reports an error unless the number of attempts has ended, and each
// charge was either refunded or recorded.
func (a *Audit) Check(t testing.TB, attempts int, args ...any) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	assert.Equal(t, attempts, a.ended, append([]any{"attempts that were recorded: %v"}, args)...)
	assert.Empty(t, a.open, append([]any{"charges that remain: %v"}, args)...)
	assert.Empty(t, a.mistakes, append([]any{"mistakes: %v"}, args)...)
}
