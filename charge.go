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

	// charged is the argument of the Withdraw that has allowed the current or
	// next attempt. It is zero if none has.
	charged AttemptResult
}

// withdraw asks the budget for a retry after the last attempt.
func (c *charge) withdraw(ctx context.Context) bool {
	if !c.budget.Withdraw(ctx, c.last) {
		return false
	}
	c.charged = c.last
	return true
}

// refundUnsent takes back the charge for a retry that is not sent.
func (c *charge) refundUnsent() {
	if charged := c.charged; charged.Number > 0 {
		c.charged = AttemptResult{}
		c.budget.Refund(charged)
	}
}

// record passes the last result on to the budget.
func (c *charge) record() {
	charged := c.charged
	c.charged, c.pending = AttemptResult{}, false
	if b, ok := c.budget.(*HostBudget); ok && charged.Number == 0 && c.last.Succeeded() {
		b.deposit(c.last.Origin, c.window)
		return
	}
	c.budget.Record(c.last, charged)
}

// hostWindow is the window of one host in one HostBudget, which a transport
// keeps. It is nil until it is used.
type hostWindow struct {
	atomic.Pointer[hosttable.Entry[window.Window]]
}
