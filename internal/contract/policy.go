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
type UsedUp struct{ httpretry.Unlimited }

// Withdraw implements httpretry.Budget. It returns false.
func (UsedUp) Withdraw(context.Context, httpretry.AttemptResult) bool { return false }

// Ledger is a budget that allows every retry and lists the calls of its
// methods. It is not safe for concurrent use.
type Ledger struct{ Entries []string }

// Withdraw implements httpretry.Budget. It returns true.
func (l *Ledger) Withdraw(_ context.Context, last httpretry.AttemptResult) bool {
	l.add("withdraw", last)
	return true
}

// Refund implements httpretry.Budget.
func (l *Ledger) Refund(last httpretry.AttemptResult) { l.add("refund", last) }

// Record implements httpretry.Budget.
func (l *Ledger) Record(ended, charged httpretry.AttemptResult) {
	entry := "failure"
	switch {
	case ended.Succeeded():
		entry = "success"
	case ended.Outcome == httpretry.Final:
		entry = "nothing"
	}
	if charged.Number > 0 {
		entry = "charged " + entry
	}
	l.add(entry, ended)
}

func (l *Ledger) add(entry string, of httpretry.AttemptResult) {
	l.Entries = append(l.Entries, entry+" "+of.Origin)
}

// Balance returns how many retries b would allow to origin now.
func Balance(b *httpretry.HostBudget, origin string) int {
	retries, _ := b.Balance(origin)
	return retries
}
