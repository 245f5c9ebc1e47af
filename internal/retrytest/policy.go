package retrytest

import (
	"context"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// RetryEvery returns a policy of five attempts with the same wait between
// them, and no budget.
func RetryEvery(wait time.Duration) httpretry.Policy {
	return httpretry.Policy{
		MaxAttempts: 5,
		Backoff:     strategies.Constant{Wait: wait},
		Budget:      httpretry.Unlimited{},
	}
}

// UsedUp is a budget that refuses every retry.
type UsedUp struct{}

// Deposit implements httpretry.Budget.
func (UsedUp) Deposit(string) {}

// Refund implements httpretry.Budget.
func (UsedUp) Refund(string) {}

// Withdraw implements httpretry.Budget. It returns false.
func (UsedUp) Withdraw(context.Context, string) bool { return false }

// Ledger is a budget that allows every retry and lists the calls of its
// methods. It is not safe for concurrent use.
type Ledger struct{ Entries []string }

// Deposit implements httpretry.Budget.
func (l *Ledger) Deposit(host string) { l.Entries = append(l.Entries, "deposit "+host) }

// Refund implements httpretry.Budget.
func (l *Ledger) Refund(host string) { l.Entries = append(l.Entries, "refund "+host) }

// Withdraw implements httpretry.Budget. It returns true.
func (l *Ledger) Withdraw(_ context.Context, host string) bool {
	l.Entries = append(l.Entries, "withdraw "+host)
	return true
}

// Balance returns how many retries b would allow to origin now.
func Balance(b *httpretry.HostBudget, origin string) int {
	retries, _ := b.Balance(origin)
	return retries
}
