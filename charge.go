package httpretry

import (
	"context"
	"sync/atomic"

	"github.com/seed421102f4/httpretry/internal/hosttable"
	"github.com/seed421102f4/httpretry/internal/window"
)

// charge has the budget of a request, and the results of attempts that it gets.
type charge struct {
	budget Budget
	window *hostWindow // of the request's origin in budget, if that is known

	last    AttemptResult // of the attempt that ended last
	pending bool          // the budget does not know the end of an attempt

	// after is the argument of the Withdraw that has allowed the current or next
	// attempt. It is zero if that is no retry.
	after AttemptResult
}

// withdraw asks the budget for a retry after the last attempt.
func (c *charge) withdraw(ctx context.Context) bool {
	if !c.budget.Withdraw(ctx, c.last) {
		return false
	}
	c.after = c.last
	return true
}

// isCharged reports whether the current or next attempt is a retry that the
// budget has allowed.
func (c *charge) isCharged() bool { return c.after.Attempt > 0 }

// refundUnsent takes back the charge for a retry that is not sent.
func (c *charge) refundUnsent() {
	if c.isCharged() {
		after := c.after
		c.after = AttemptResult{}
		c.budget.Refund(after)
	}
}

// record passes the last result on to the budget.
func (c *charge) record() {
	after := c.after
	c.after, c.pending = AttemptResult{}, false
	if b, ok := c.budget.(*HostBudget); ok && !c.last.Charged && c.last.Succeeded() {
		b.deposit(c.last.Origin, c.window)
		return
	}
	c.budget.Record(c.last, after)
}

// hostWindow is the window of one host in one HostBudget, which a transport
// keeps. It is nil until it is used.
type hostWindow struct {
	atomic.Pointer[hosttable.Entry[window.Window]]
}
