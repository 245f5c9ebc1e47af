package httpretry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed421102f4/httpretry/internal/hostpattern"
	"github.com/seed421102f4/httpretry/internal/hosttable"
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

	hosts hosttable.Table[window]
}

const (
	defaultRatio  = 0.1
	defaultBurst  = 5
	defaultWindow = 10 * time.Second

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
		return errors.New("HostBudget: nil: want a usable HostBudget, or no Budget for the default")
	}
	var errs []error
	// NaN is neither zero nor within the range.
	if r := b.Ratio; r != 0 && !(r >= minRatio && r <= maxRatio) {
		const want = "want 0 (the default, %v) or a number from %s to %d"
		errs = append(errs, fmt.Errorf("HostBudget.Ratio: %v: "+want,
			r, defaultRatio, strconv.FormatFloat(minRatio, 'f', -1, 64), int(maxRatio)))
	}
	if b.Burst > maxBurst {
		const want = "want 0 (the default, %d), a negative number (none) or at most %d"
		errs = append(errs, fmt.Errorf("HostBudget.Burst: %d: "+want,
			b.Burst, defaultBurst, maxBurst))
	}
	if w := b.Window; w != 0 && (w < minWindow || w > maxWindow) {
		const want = "want 0 (the default, %v) or a duration from %v to %v"
		errs = append(errs, fmt.Errorf("HostBudget.Window: %v: "+want,
			w, defaultWindow, minWindow, maxWindow))
	}
	return errors.Join(errs...)
}

// Withdraw reports whether one retry may be sent to origin, and charges for it
// if so. It ignores ctx.
func (b *HostBudget) Withdraw(ctx context.Context, origin string) bool {
	return b.hosts.Get(origin, b.open).withdraw()
}

// Deposit records a success of origin. If charged is true, it cancels the
// latest charge within the last Window and gives the bucket a token, except
// with Strict.
func (b *HostBudget) Deposit(origin string, charged bool) {
	b.hosts.Get(origin, b.open).deposit(charged && !b.Strict)
}

// Refund cancels the latest charge for origin within the last Window, if any.
func (b *HostBudget) Refund(origin string) {
	if w := b.hosts.Peek(origin); w != nil {
		w.refund()
	}
}

// Balance returns how many calls of Withdraw for origin (see [Origin]) would
// return true now, and whether origin is remembered. An origin that is not
// remembered starts with Burst retries. Balance does not count as a use of
// origin.
func (b *HostBudget) Balance(origin string) (retries int, known bool) {
	if w := b.hosts.Peek(origin); w != nil {
		return w.balance(), true
	}
	_, burst, _ := b.settings()
	return burst, false
}

// settings returns the fields with their defaults. If they are not valid, the
// result allows no retries.
func (b *HostBudget) settings() (ratio float64, burst int, length time.Duration) {
	if b.Validate() != nil {
		return 0, 0, defaultWindow
	}
	burst = max(cmp.Or(b.Burst, defaultBurst), 0)
	return cmp.Or(b.Ratio, defaultRatio), burst, cmp.Or(b.Window, defaultWindow)
}

// open makes w, which is zero, the window of a new host.
func (b *HostBudget) open(w *window) {
	ratio, burst, length := b.settings()
	w.start = time.Now()
	w.step = length / windowSteps
	w.num, w.den = fraction(ratio)
	w.burst = rate.NewLimiter(rate.Limit(float64(burst)/length.Seconds()), burst)
}

const (
	// windowSteps is the number of parts of a Window that expire together.
	windowSteps = 10

	// maxBatch is the maximum number of calls of Deposit for one reading of the
	// clock.
	maxBatch = 16
)

// A window is the budget of one host. It keeps this law, for any interleaving
// of calls and any interval of length T:
//
//	charges - refunds <= Ratio * (successes in T and the Window before)
//	                     + Burst * (1 + T/Window)
//	                     + retries that succeeded in T
//
// and while the host answers nothing but failures, however long that lasts:
//
//	charges - refunds <= Ratio * (successes in the Window before) + Burst
//
// It counts successes because an overloaded host has few of them. A budget that
// counts requests allows most retries when it should allow fewest.
//
// It counts them in a window because successes of an hour ago do not show how
// the host is now. If they were saved up, they would allow a storm of retries
// when it fails.
//
// It charges for failed retries only, because 20 % of random failures need more
// retries than any ratio that protects a host in an outage. Those retries
// succeed, so they are work that somebody wanted. Retries that fail overload a
// host.
//
// The burst stops because each process sends one to a host that is down. If
// time alone refilled it, enough processes could keep the host down. A retry
// that succeeds does refill it. It has shown that the host is not down, and
// that retries help. In an outage none succeeds, so the second bound remains.
//
// All charges of a step expire together with the successes of that step. That
// is why the law holds for intervals longer than a Window. Each Window of such
// an interval keeps it by itself.
type window struct {
	// Set by open, and only read from then on.
	start    time.Time
	step     time.Duration // Window/windowSteps, rounded down so that all steps fit in the Window
	num, den uint64        // Ratio

	mu  sync.Mutex
	now time.Duration // since start: when the clock was last read

	burst *rate.Limiter // guarded by mu, so that its time never goes back
	// The clock of the burst is the time that the host was not failing. A
	// Withdraw shows that the host fails and stops the clock, and the next
	// Deposit starts it.
	burstTime time.Duration
	failing   bool

	// tallies are those of the last steps, each at its number modulo
	// windowSteps.
	tallies [windowSteps]tally

	// pending counts the deposits since the clock was last read. They count as
	// made at that time, so none of them counts for too long. The deposit that
	// fills the batch reads the clock.
	pending atomic.Uint64
	batch   atomic.Uint64
}

// A tally has the counts of one step.
type tally struct {
	successes uint64
	charges   uint64 // that were not refunded
	fromBurst uint64 // of the charges, those that took a token
}

// deposit takes the lock and reads the clock once per batch. Batches grow while
// they are filled within one step, so that a host with few requests has exact
// times. The first deposit after a withdrawal is always a batch, and so is that
// of a retry that succeeded.
func (w *window) deposit(retrySucceeded bool) {
	if w.pending.Add(1) >= w.batch.Load() || retrySucceeded {
		w.endBatch(retrySucceeded)
	}
}

// endBatch is apart from deposit, so that the compiler inlines deposit.
func (w *window) endBatch(retrySucceeded bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.now / w.step
	w.look(1)
	w.failing = false
	// A batch that is filled within one step may be larger.
	if w.now/w.step == before {
		w.batch.Store(min(2*w.batch.Load()+1, maxBatch))
	} else {
		w.batch.Store(1)
	}
	if retrySucceeded {
		w.cancelCharge()
		w.addToken()
	}
}

// withdraw charges for a retry if the ratio or a token allows it, and reports
// whether one does.
func (w *window) withdraw() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look(0)
	w.failing = true
	w.batch.Store(1)
	t := w.tally()
	switch {
	// The ratio comes first, so that the tokens remain for an outage.
	case w.left() > 0:
	case w.burst.AllowN(w.burstNow(), 1):
		t.fromBurst++
	default:
		return false
	}
	t.charges++
	return true
}

func (w *window) refund() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look(0)
	w.cancelCharge()
}

// cancelCharge cancels the latest charge. It is not known which charge a refund
// is for. Most refunds follow soon after their charge, so the latest is the
// best guess. If the oldest were canceled, the remaining charges would seem to
// be later and later, and never expire. A refund without a charge in the window
// does nothing. A refund whose own charge has expired cancels another one. The
// law allows that, because the expired charge was within its own window. mu is
// held and w is up to date.
func (w *window) cancelCharge() {
	step := w.now / w.step
	for i := range time.Duration(windowSteps) {
		t := &w.tallies[(step+windowSteps-i)%windowSteps]
		if t.charges == 0 {
			continue
		}
		t.charges--
		if t.fromBurst > 0 {
			t.fromBurst--
			w.addToken()
		}
		return
	}
}

// addToken puts a token into the burst, unless it is full. mu is held and w is
// up to date.
func (w *window) addToken() {
	// Taking -1 token adds one. The limiter does not exceed its own maximum.
	w.burst.AllowN(w.burstNow(), -1)
}

func (w *window) balance() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.available()
}

// available updates w, and returns how many retries it allows. mu is held.
func (w *window) available() int {
	w.look(0)
	return int(min(w.left(), math.MaxInt-maxBurst)) + tokens(w.burst, w.burstNow())
}

// look updates w to the present and counts the pending deposits. The last
// current of them are made now, by the caller. mu is held, so times are in
// order. If the clock goes back all the same, now stays as it is.
func (w *window) look(current uint64) {
	// The clock is read before the swap, because a deposit after the swap is
	// later than now, the time for which it will count.
	now := max(w.now, time.Since(w.start))
	pending := w.pending.Swap(0)
	// Another look may have counted the caller's deposit already.
	current = min(current, pending)
	w.tally().successes += pending - current

	first, last := w.now/w.step, now/w.step
	for i := range min(last-first, windowSteps) {
		w.tallies[(first+1+i)%windowSteps] = tally{}
	}
	if !w.failing {
		w.burstTime += now - w.now
	}
	w.now = now
	w.tally().successes += current
}

// tally returns the tally of the current step. mu is held.
func (w *window) tally() *tally { return &w.tallies[w.now/w.step%windowSteps] }

// burstNow returns the time of the burst's clock. mu is held.
func (w *window) burstNow() time.Time { return w.start.Add(w.burstTime) }

// left returns how many more retries the ratio allows. mu is held and w is up
// to date.
func (w *window) left() uint64 {
	successes, charges := w.total()
	// This is successes * num / den in 128 bits, saturated to 64.
	quota := uint64(math.MaxUint64)
	if hi, lo := bits.Mul64(successes, w.num); hi < w.den {
		quota, _ = bits.Div64(hi, lo, w.den)
	}
	return quota - min(quota, charges)
}

// total returns the counts of all steps. mu is held and w is up to date.
func (w *window) total() (successes, charges uint64) {
	for _, t := range w.tallies {
		successes += t.successes
		charges += t.charges
	}
	return successes, charges
}

// tokens returns how many tokens l has at now. Like l, it counts a token that
// is less than a nanosecond away, so that rounding makes no difference.
func tokens(l *rate.Limiter, now time.Time) int {
	exact := l.TokensAt(now)
	whole := math.Floor(exact)
	if (whole+1-exact)/float64(l.Limit())*float64(time.Second) < 1 {
		whole++
	}
	return int(whole)
}

// fraction returns the simplest fraction that rounds to ratio, a float64: 1/10
// for 0.1, although the float64 is a little more than that. It is the first
// convergent of ratio's continued fraction that does. By Legendre's theorem,
// that finds every fraction up to one with a denominator below 2^26, such as
// all decimals of seven places. Any other fraction is as close to ratio as a
// float64 can tell. Remainders are exact in floating point, and so is Euclid's
// algorithm.
func fraction(ratio float64) (num, den uint64) {
	n0, d0, n, d := 0.0, 1.0, 1.0, 0.0
	for a, b := ratio, 1.0; n/d != ratio && b != 0; {
		rest := math.Mod(a, b)
		q := math.Round((a - rest) / b)
		n0, d0, n, d = n, d, q*n+n0, q*d+d0
		a, b = b, rest
	}
	return uint64(n), uint64(d)
}
