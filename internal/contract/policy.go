package contract

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
func (UsedUp) Deposit(origin string, charged bool) {}

// Refund implements httpretry.Budget.
func (UsedUp) Refund(origin string) {}

// Withdraw implements httpretry.Budget. It returns false.
func (UsedUp) Withdraw(ctx context.Context, origin string) bool { return false }

// Ledger is a budget that allows every retry and lists the calls of its
// methods. It is not safe for concurrent use.
type Ledger struct{ Entries []string }

// Deposit implements httpretry.Budget.
func (l *Ledger) Deposit(origin string, charged bool) {
	entry := "deposit "
	if charged {
		entry = "deposit charged "
	}
	l.Entries = append(l.Entries, entry+origin)
}

// Refund implements httpretry.Budget.
func (l *Ledger) Refund(origin string) { l.Entries = append(l.Entries, "refund "+origin) }

// Withdraw implements httpretry.Budget. It returns true.
func (l *Ledger) Withdraw(_ context.Context, origin string) bool {
	l.Entries = append(l.Entries, "withdraw "+origin)
	return true
}

// Balance returns how many retries b would allow to origin now.
func Balance(b *httpretry.HostBudget, origin string) int {
	retries, _ := b.Balance(origin)
	return retries
}
