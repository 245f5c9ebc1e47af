package httpretry

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/internal/defaults"
	"github.com/seed421102f4/httpretry/internal/fielderr"
	"github.com/seed421102f4/httpretry/internal/hostpattern"
	"github.com/seed421102f4/httpretry/internal/hosttable"
	"github.com/seed421102f4/httpretry/internal/window"
)

// A Budget decides how many retries an origin gets, and so limits the load that
// retries add to a failing host. Its methods may be called concurrently. If it
// is also a [Balancer], [RetryTransport.Origins] shows its state.
type Budget interface {
	// Withdraw reports whether one retry may follow last, the request's last
	// attempt, and charges for it if so. It is called if no other check prevents
	// the retry. When ctx, the request's context, is done, it must return. The
	// result does not matter then. With [Policy.Resume], last may have been
	// recorded as a success, whose body has broken off since.
	Withdraw(ctx context.Context, last AttemptResult) bool

	// Refund cancels the charge of Withdraw(ctx, last), because that retry is
	// never sent. It must not block.
	Refund(last AttemptResult)

	// Record tells the Budget how an attempt has ended: with the header of a
	// response, an error or a panic. It is called once for each attempt, before
	// the Withdraw for the next one. It must not block. An attempt that resumes a
	// body ends when it has delivered 64 KiB or the rest, when it fails, or when
	// the caller closes the body. charged is the argument of the Withdraw that
	// allowed the attempt, or zero, with a Number of 0. So each Withdraw that
	// returns true is followed by one Refund or one Record with its argument.
	Record(ended, charged AttemptResult)
}

// An AttemptResult tells a [Budget] or an observer how an attempt ended.
type AttemptResult struct {
	_ [0]func() // no unkeyed literals, no comparison

	Origin string // the result of the function [Origin] for the request's URL

	// PolicyKey is the key in Config.Policies of the request's policy, also after
	// a WithPolicyFunc, or "" for the default and a WithPolicy. Metrics may use
	// it.
	PolicyKey string

	Number int // of the attempt, from 1
	Status int // of the response, or 0 if there is none

	// Outcome is the attempt's. A header that forbids a retry does not count.
	//
	//	Status  Outcome      meaning
	//	not 0   Final        the host succeeded, such as with a 200 or a 404
	//	not 0   any other    the host failed
	//	0       Transient    the host failed
	//	0       Unprocessed  no server processed the request, such as if there was no
	//	                     connection, or if a layer in Base did not send it
	//	0       Final        not known to be the host's failure, such as if the
	//	                     caller canceled, its body failed, or Base panicked
	Outcome Outcome

	Timeout   bool // no response in time, by the policy, Base or the caller, or a 504
	Throttled bool // the response is a 429 that asks for a wait
}

// Succeeded reports whether the host succeeded, such as with a 200 or a 404.
func (r AttemptResult) Succeeded() bool { return r.Status != 0 && r.Outcome == Final }

// Balancer is implemented by a [Budget] that knows how many retries it would
// allow now. Its method may be called concurrently.
type Balancer interface {
	// Balance returns how many retries to origin the Budget would allow now, not
	// counting those that are free, and whether it remembers origin. If it does
	// not, retries is the number for a new origin.
	Balance(origin string) (retries int, known bool)
}

// Origin returns the scheme, host and port of u as budgets and cool-downs name
// them, such as "https://a.test" or "http://[::1]:8080", and "" for nil.
func Origin(u *url.URL) string { return hostpattern.Canonical(u) }

var (
	_ Budget   = (*HostBudget)(nil)
	_ Balancer = (*HostBudget)(nil)
	_ Budget   = Unlimited{}
)

// Unlimited is a [Budget] that allows every retry, for tests or a few clients.
type Unlimited struct{}

// Withdraw returns true.
func (Unlimited) Withdraw(ctx context.Context, last AttemptResult) bool { return true }

// Refund does nothing.
func (Unlimited) Refund(last AttemptResult) {}

// Record does nothing.
func (Unlimited) Record(ended, charged AttemptResult) {}

// A HostBudget is a [Budget] that limits the failed retries of each host. Its
// zero value is ready to use. Any number of transports may share it. It must
// not be copied or changed after first use.
//
// A retry counts as failed until it succeeds. It costs 1, or 2 after a Timeout,
// or nothing if it waits as long as a 429 asks. It is allowed if, its own cost
// included,
//
//	cost of the host's failed retries <= Burst + Ratio * successes
//
// A success is a request whose response is not a transient failure. A retry
// that succeeds cancels its own cost, and 1 of that of others. Both sides count
// for a Window of the host's time, which stops when a retry with a cost is
// asked for and goes on at the next success. So however long a host is down, by
// default a process sends it again at most what it usually sends in 6 s, and
// five requests more, or half if attempts time out. See docs/choosing.md.
//
// The 1024 hosts that were used last are remembered. Any other host starts with
// a full Burst, so code that can choose the hosts of requests gets Burst
// retries for each new one.
type HostBudget struct {
	Ratio  float64       // cost of failed retries per success, 0.000001 to 1000000. 0 means 0.2.
	Burst  int           // cost beyond Ratio, at most 1000000. 0 means 5; negative means none
	Window time.Duration // for which both count, a millisecond to 365 days. 0 means 30 seconds.
	Strict bool          // charge for retries that succeed, too

	hosts hosttable.Table[window.Window]
}

const (
	// Within these, the fraction for Ratio, a float, is exact by a wide margin.
	maxRatio = 1e6
	minRatio = 1 / maxRatio
	maxBurst = 1_000_000

	// A shorter window is most likely a number without its unit, and a longer
	// one a mistake.
	minWindow = time.Millisecond
	maxWindow = 365 * 24 * time.Hour
)

// Validate returns an error with one line for each invalid field, as [New]
// does. A HostBudget that is not valid allows only retries that are free.
func (b *HostBudget) Validate() error {
	if b == nil {
		return fielderr.At("HostBudget",
			fielderr.New("nil", "a usable HostBudget, or no Budget for the default"))
	}
	var problems []error
	report := func(field string, value any, want string, args ...any) {
		err := fielderr.New(value, fmt.Sprintf(want, args...))
		problems = append(problems, fielderr.AtField(field, err))
	}
	// NaN is neither zero nor within the range.
	if r := b.Ratio; r != 0 && !(r >= minRatio && r <= maxRatio) {
		report("Ratio", r, "0 (the default, %v) or a number from %s to %d",
			defaults.Ratio, strconv.FormatFloat(minRatio, 'f', -1, 64), int(maxRatio))
	}
	if b.Burst > maxBurst {
		report("Burst", b.Burst, "0 (the default, %d), a negative number (none) or at most %d",
			defaults.Burst, maxBurst)
	}
	if w := b.Window; w != 0 && (w < minWindow || w > maxWindow) {
		report("Window", w, "0 (the default, %v) or a duration from %v to %v",
			defaults.Window, minWindow, maxWindow)
	}
	return fielderr.At("HostBudget", fielderr.Join(problems...))
}

// retryCost returns the cost of a retry that follows last. The server has
// chosen the time of a retry after a 429 that asks for a wait, so that costs
// nothing. After a timeout, the server may have done all the work of the
// attempt, and most likely has a queue.
func retryCost(last AttemptResult) int {
	switch {
	case last.Throttled:
		return 0
	case last.Timeout:
		return 2
	}
	return 1
}

// Withdraw charges for one retry to last.Origin and reports whether it may be
// sent. After a Throttled attempt, it is free. It ignores ctx.
func (b *HostBudget) Withdraw(ctx context.Context, last AttemptResult) bool {
	cost := retryCost(last)
	return cost == 0 || b.hosts.Get(last.Origin, b.open).Withdraw(cost)
}

// Refund cancels the latest charges within the last Window, up to the retry's.
func (b *HostBudget) Refund(last AttemptResult) {
	if w := b.hosts.Peek(last.Origin); w != nil {
		w.Refund(retryCost(last))
	}
}

// Record records a success of ended.Origin. If the attempt was charged for, it
// cancels the latest charges within the last Window, up to its cost and 1 more,
// except with Strict. An attempt that failed changes only its BudgetStatus.
func (b *HostBudget) Record(ended, charged AttemptResult) {
	if !ended.Succeeded() {
		// If the caller has left, the host is not known to have failed.
		if ended.Status != 0 || ended.Outcome != Final {
			b.hosts.Get(ended.Origin, b.open).Fail()
		}
		return
	}
	if cost := retryCost(charged); charged.Number > 0 && cost > 0 && !b.Strict {
		b.hosts.Get(ended.Origin, b.open).RetrySucceeded(cost)
	} else {
		b.deposit(ended.Origin, nil)
	}
}

// deposit is Record for a success that gives no charge back. If known has the
// window of origin, it needs no second lookup.
func (b *HostBudget) deposit(origin string, known *hostWindow) {
	if known == nil {
		b.hosts.Get(origin, b.open).Deposit()
		return
	}
	e := known.Load()
	if e == nil || !e.Use() {
		e = b.hosts.Entry(origin, b.open)
		known.Store(e)
	}
	e.Value.Deposit()
}

// Balance returns the cost of the retries that are allowed now, which is their
// number except after timeouts. It does not count as a use of origin.
func (b *HostBudget) Balance(origin string) (retries int, known bool) {
	if w := b.hosts.Peek(origin); w != nil {
		return w.Balance(), true
	}
	_, burst, _ := b.settings()
	return burst, false
}

// status sets the numbers of s that a HostBudget knows.
func (b *HostBudget) status(origin string, s *BudgetStatus) {
	w := b.hosts.Peek(origin)
	if w == nil {
		_, s.Balance, _ = b.settings()
		return
	}
	s.Balance, s.Successes, s.FailedRetries = w.Counts()
	s.RecentSuccesses, s.RecentFailures = w.Recent()
}

// settings returns the fields with their defaults. If they are not valid, the
// result allows no retries.
func (b *HostBudget) settings() (ratio float64, burst int, length time.Duration) {
	if b.Validate() != nil {
		return 0, 0, defaults.Window
	}
	burst = max(cmp.Or(b.Burst, defaults.Burst), 0)
	return cmp.Or(b.Ratio, defaults.Ratio), burst, cmp.Or(b.Window, defaults.Window)
}

// open makes w, which is zero, the window of a new host.
func (b *HostBudget) open(w *window.Window) {
	w.Open(b.settings())
}

// charge has the budget of a request, and the results of attempts that it gets.
type charge struct {
	budget Budget
	window *hostWindow // of the request's origin in budget, if that is known

	last AttemptResult // of the attempt that ended last

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
	c.charged = AttemptResult{}
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
