package httpretry

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/seed421102f4/httpretry/internal/defaults"
	"github.com/seed421102f4/httpretry/internal/fielderr"
	"github.com/seed421102f4/httpretry/internal/hostpattern"
	"github.com/seed421102f4/httpretry/internal/hosttable"
	"github.com/seed421102f4/httpretry/internal/window"
)

// A Budget decides how many retries an origin gets, and so limits the load that
// retries add to a failing host. An origin is the [Origin] of a request's URL.
// All methods may be called concurrently.
type Budget interface {
	// Withdraw reports whether one retry may be sent to origin, and charges for
	// the retry if so. It is called for each retry that no other check
	// prevents, except after a 429 (Too Many Requests) that asks for a wait.
	// It must return when ctx is done.
	Withdraw(ctx context.Context, origin string) bool

	// Deposit records that a request to origin got a response that is not a
	// transient failure. It is called once for each such request, and must not
	// block. Charged reports whether the last attempt was a retry that Withdraw
	// charged for. A resume counts, too, after it has delivered 64 KiB or the
	// rest of the body.
	Deposit(origin string, charged bool)

	// Refund cancels the charge for a retry to origin that was never sent.
	Refund(origin string)
}

// Origin returns the scheme, host and port of u as budgets and cool-downs name
// them, such as "https://a.test" or "http://[::1]:8080", and "" for nil.
func Origin(u *url.URL) string { return hostpattern.Canonical(u) }

var (
	_ Budget = (*HostBudget)(nil)
	_ Budget = Unlimited{}
)

// Unlimited is a [Budget] that allows every retry, for tests or a few clients.
type Unlimited struct{}

// Withdraw returns true.
func (Unlimited) Withdraw(ctx context.Context, origin string) bool { return true }

// Deposit does nothing.
func (Unlimited) Deposit(origin string, charged bool) {}

// Refund does nothing.
func (Unlimited) Refund(origin string) {}

// A HostBudget is a [Budget] that limits the failed retries of each host. Its
// zero value is ready to use. A HostBudget may be shared by any number of
// transports. It must not be copied or changed after first use.
//
// A host gets a retry if its failed retries of the last Window, this retry
// included, are at most Ratio times its successes of the last Window. Otherwise
// the retry takes a token from the host's bucket, if any is left. The bucket
// starts with Burst tokens, its maximum. It gains Burst tokens per Window, but
// none between a failure and the next success, and one for each retry that
// succeeds. A retry counts as failed until it succeeds. A success is a request
// whose response is not a transient failure.
//
// So a host that is down gets only Burst retries from each process, and Ratio
// more for each success of the Window before. A host that fails at random gets
// almost every retry that helps. If each process sends five requests a second
// and 20 % of attempts fail, 99.2 % of requests succeed. With Strict, retries
// that succeed count, too, and 89.2 % succeed. A retry after a 429 that waits
// as long as the response asks is free. See docs/choosing.md in the repository.
//
// The 1024 hosts that were used last are remembered. Any other host starts with
// a full Burst, so code that can choose the hosts of requests gets Burst
// retries for each new one.
type HostBudget struct {
	// Ratio is the number of failed retries per success, from 0.000001 to
	// 1000000. 0 means 0.1.
	Ratio float64

	// Burst is the number of retries beyond Ratio, at most 1000000. 0 means 5;
	// negative means none.
	Burst int

	// Window is how long successes and retries count, from a millisecond to
	// 365 days. 0 means 10 seconds.
	Window time.Duration

	Strict bool // charge for retries that succeed, too

	hosts hosttable.Table[window.Window]
}

const (
	// Within these, the fraction for Ratio and the tokens of the Burst, which
	// are floats, are exact by a wide margin.
	maxRatio = 1e6
	minRatio = 1 / maxRatio
	maxBurst = 1_000_000

	// A shorter window is most likely a number without its unit. With a much
	// longer one, the time until the next token overflows.
	minWindow = time.Millisecond
	maxWindow = 365 * 24 * time.Hour
)

// Validate returns an error with one line for each invalid field, as [New]
// does. A HostBudget that is not valid allows no retries.
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

// Withdraw reports whether one retry may be sent to origin, and charges for it
// if so. It ignores ctx.
func (b *HostBudget) Withdraw(ctx context.Context, origin string) bool {
	return b.hosts.Get(origin, b.open).Withdraw()
}

// Deposit records a success of origin. If charged is true, it cancels the
// latest charge within the last Window and gives the bucket a token, except
// with Strict.
func (b *HostBudget) Deposit(origin string, charged bool) {
	w := b.hosts.Get(origin, b.open)
	if charged && !b.Strict {
		w.RetrySucceeded()
	} else {
		w.Deposit()
	}
}

// Refund cancels the latest charge for origin within the last Window, if any.
func (b *HostBudget) Refund(origin string) {
	if w := b.hosts.Peek(origin); w != nil {
		w.Refund()
	}
}

// Balance returns how many calls of Withdraw for origin (see [Origin]) would
// return true now, and whether origin is remembered. An origin that is not
// remembered starts with Burst retries. Balance does not count as a use of
// origin.
func (b *HostBudget) Balance(origin string) (retries int, known bool) {
	if w := b.hosts.Peek(origin); w != nil {
		return w.Balance(), true
	}
	_, burst, _ := b.resolve()
	return burst, false
}

// status returns the numbers of a PolicyStatus that a HostBudget knows.
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
