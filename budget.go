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
// retries add to a failing host. All methods may be called concurrently. A
// Budget that also has the method of [Balancer] shows its state in
// [RetryTransport.Origins].
type Budget interface {
	// Withdraw reports whether one retry may follow last, the request's last
	// attempt, and charges for the retry if so. It is called for each retry that
	// no other check prevents. When ctx, the request's context, is done, it must
	// return. The result does not matter then. With [Policy.Resume], last may be
	// an attempt that was recorded as a success. Its body has broken off since.
	Withdraw(ctx context.Context, last AttemptResult) bool

	// Refund cancels the charge of Withdraw(ctx, last), because that retry is
	// never sent. It must not block.
	Refund(last AttemptResult)

	// Record tells the Budget how an attempt has ended: with the header of a
	// response, an error or a panic. It is called once for each attempt, before
	// the Withdraw for a retry that follows. It must not block.
	//
	// If a Withdraw has allowed the attempt, charged is the argument of that
	// Withdraw. Otherwise charged is zero, and its Number is 0. So each Withdraw
	// that returns true is followed by one Refund or one Record with its argument.
	//
	// An attempt that resumes a body ends when it has delivered 64 KiB or the
	// rest, when it fails, or when the caller closes the body.
	Record(ended, charged AttemptResult)
}

// An AttemptResult tells a [Budget], or an observer in an [Event], how an attempt
// has ended.
type AttemptResult struct {
	_ [0]func() // no unkeyed literals, no comparison

	Origin string // the result of the function [Origin] for the request's URL

	// PolicyKey is the key in Config.Policies of the policy that the request
	// follows, also if a WithPolicyFunc has changed it. It is "" for the default
	// and for a WithPolicy. There are few keys, so it is safe for labels of
	// metrics.
	PolicyKey string

	Number int // of the attempt, from 1
	Status int // of the response, or 0 if there is none

	// Outcome is the Outcome of the attempt. A header that forbids a retry does
	// not count.
	//
	//	Status  Outcome      meaning
	//	not 0   Final        the host succeeded, such as with a 200 or a 404
	//	not 0   any other    the host failed
	//	0       Transient    the host failed
	//	0       Unprocessed  no server processed the request: no connection was
	//	                     made, or a layer in Base did not send it
	//	0       Final        not known to be the host's failure: the caller
	//	                     canceled, the request's body failed, Base panicked
	Outcome Outcome

	// Timeout means that there was no response in time, be that the time of the
	// policy, of Base or of the caller, or a 504.
	Timeout bool

	Throttled bool // the response is a 429 that asks for a wait
}

// Succeeded reports whether the attempt got a response that is not a transient
// failure, such as a 200 or a 404.
func (r AttemptResult) Succeeded() bool { return r.Status != 0 && r.Outcome == Final }

// Balancer is implemented by a [Budget] that knows how many retries it would
// allow now. Its method may be called concurrently.
type Balancer interface {
	// Balance returns how many retries to origin the Budget would allow if no
	// attempt ended meanwhile, not counting those that are free. Known reports
	// whether it remembers origin. Otherwise, retries is the number for a new
	// origin.
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
// zero value is ready to use. A HostBudget may be shared by any number of
// transports. It must not be copied or changed after first use.
//
// A retry costs 1, or 2 after a Timeout. It is allowed if, its own cost included,
//
//	cost of the host's failed retries <= Burst + Ratio * successes
//
// Both count for a Window of the host's time, which stops when a retry is asked
// for and goes on at the next success. A retry counts as failed until it
// succeeds. Then it cancels its own cost, and 1 of those of other failed retries.
// A success is a request whose response is not a transient failure.
//
// So by default, each process sends a host that is down what it usually sends in
// 6 s, or in 3 s if attempts time out, and five requests more, however long the
// host is down. A host that fails at random gets almost every retry that helps.
// With Strict, retries that succeed count, too. A retry after a 429 that waits as
// long as the response asks is free. See docs/choosing.md in the repository.
//
// The 1024 hosts that were used last are remembered. Any other host starts with
// a full Burst, so code that can choose the hosts of requests gets Burst
// retries for each new one.
type HostBudget struct {
	// Ratio is the cost of failed retries per success, from 0.000001 to
	// 1000000. 0 means 0.2.
	Ratio float64

	// Burst is the cost of failed retries beyond Ratio, at most 1000000. 0 means
	// 5; negative means none.
	Burst int

	// Window is how long successes and retries count, from a millisecond to
	// 365 days. 0 means 30 seconds.
	Window time.Duration

	Strict bool // charge for retries that succeed, too

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

// retryCost returns the cost of a retry that follows last. The server has chosen the time of a
// retry after a 429 that asks for a wait, so that costs nothing. After a timeout,
// the server may have done all the work of the attempt, and most likely has a
// queue.
func retryCost(last AttemptResult) int {
	switch {
	case last.Throttled:
		return 0
	case last.Timeout:
		return 2
	}
	return 1
}

// Withdraw reports whether one retry may be sent to last.Origin, and charges
// its cost if so. A retry after a Throttled attempt is free. It ignores ctx.
func (b *HostBudget) Withdraw(ctx context.Context, last AttemptResult) bool {
	cost := retryCost(last)
	return cost == 0 || b.hosts.Get(last.Origin, b.open).Withdraw(cost)
}

// Refund cancels the latest charges for last.Origin within the last Window, up
// to the cost of the retry.
func (b *HostBudget) Refund(last AttemptResult) {
	if w := b.hosts.Peek(last.Origin); w != nil {
		w.Refund(retryCost(last))
	}
}

// Record records a success of ended.Origin. If the attempt was charged for, it
// cancels the latest charges within the last Window, up to the cost of the
// retry and 1 more, except with Strict. An attempt that did not succeed changes
// nothing.
func (b *HostBudget) Record(ended, charged AttemptResult) {
	if !ended.Succeeded() {
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

// Balance returns the cost of the retries to origin (see [Origin]) that are
// allowed now, and whether origin is remembered. That is their number, except
// after timeouts, whose retries cost 2. An origin that is not remembered starts
// with Burst. Balance does not count as a use of origin.
func (b *HostBudget) Balance(origin string) (retries int, known bool) {
	if w := b.hosts.Peek(origin); w != nil {
		return w.Balance(), true
	}
	_, burst, _ := b.resolve()
	return burst, false
}

// status returns the numbers of a BudgetStatus that a HostBudget knows.
func (b *HostBudget) status(origin string) (balance, successes, failedRetries int) {
	w := b.hosts.Peek(origin)
	if w == nil {
		_, burst, _ := b.resolve()
		return burst, 0, 0
	}
	return w.Counts()
}

// resolve returns the fields with their defaults. If they are not valid, the
// result allows no retries.
func (b *HostBudget) resolve() (ratio float64, burst int, length time.Duration) {
	if b.Validate() != nil {
		return 0, 0, defaults.Window
	}
	burst = max(cmp.Or(b.Burst, defaults.Burst), 0)
	return cmp.Or(b.Ratio, defaults.Ratio), burst, cmp.Or(b.Window, defaults.Window)
}

// open makes w, which is zero, the window of a new host.
func (b *HostBudget) open(w *window.Window) {
	w.Open(b.resolve())
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
