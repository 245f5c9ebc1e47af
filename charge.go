package httpretry

import (
	"context"
	"sync/atomic"

	"github.com/seed421102f4/httpretry/internal/hosttable"
	"github.com/seed421102f4/httpretry/internal/window"
)

// charge has the budget of a request, and whether a retry is charged to it.
type charge struct {
	budget  Budget
	origin  string      // of the request's URL
	window  *hostWindow // of origin in budget, if that is known
	charged bool        // for the current or next attempt
}

// withdraw charges for a retry, and reports whether the budget allows it. A
// retry whose time the server has scheduled is free.
func (c *charge) withdraw(ctx context.Context, scheduled bool) bool {
	c.charged = !scheduled && c.budget.Withdraw(ctx, c.origin)
	return scheduled || c.charged
}

// refundUnsent takes back the charge for a retry that is not sent.
func (c *charge) refundUnsent() {
	if c.charged {
		c.charged = false
		c.budget.Refund(c.origin)
	}
}

// settle records a response that is not a transient failure.
func (c *charge) settle() {
	depositTo(c.budget, c.window, c.origin, c.charged)
}

// depositTo is Deposit. If known has the window of origin, a first success needs
// no second lookup.
func depositTo(budget Budget, known *hostWindow, origin string, charged bool) {
	b, ok := budget.(*HostBudget)
	if !ok || known == nil || charged {
		budget.Deposit(origin, charged)
		return
	}
	e := known.Load()
	if e == nil || !e.Use() {
		e = b.hosts.Entry(origin, b.open)
		known.Store(e)
	}
	e.Value.Deposit()
}

// hostWindow is the window of one host in one HostBudget, which a transport
// keeps. It is nil until it is used.
type hostWindow struct {
	atomic.Pointer[hosttable.Entry[window.Window]]
}
