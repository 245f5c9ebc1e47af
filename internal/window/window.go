// Package window provides Window, the budget of one host.
//
// It knows successes, retries and times. It does not know hosts, requests or
// policies, and it does not check its settings.
package window

import (
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	// steps is the number of parts of a Length that expire together.
	steps = 10

	// maxBatch is the maximum number of calls of Deposit for one reading of the
	// clock.
	maxBatch = 32
)

// A Window is the budget of one host. It is safe for concurrent use after Open.
// Ratio, Burst and Length are the arguments of Open. A Window keeps this law,
// for any interleaving of calls and any interval of duration T:
//
//	charges - refunds <= Ratio * (successes in T and the Length before)
//	                     + Burst * (1 + T/Length)
//	                     + retries that succeeded in T
//
// and while the host answers nothing but failures, however long that lasts:
//
//	charges - refunds <= Ratio * (successes in the Length before) + Burst
//
// It counts successes because an overloaded host has few of them. A budget that
// counts requests allows most retries when it should allow fewest.
//
// It counts them within a Length because successes of an hour ago do not show
// how the host is now. If they were saved up, they would allow a storm of
// retries when it fails.
//
// It charges for failed retries only. If one attempt in five fails at random,
// the host needs more retries than any Ratio allows that protects it in an
// outage. Those retries succeed, so they are work that somebody wanted. Retries
// that fail overload a host.
//
// The burst gains nothing while the host fails, because each process sends a
// burst to a host that is down. If time alone refilled the bursts, enough
// processes could keep the host down. A retry that succeeds does refill the
// burst. It has shown that the host is not down, and that retries help. In an
// outage none succeeds, so the second bound remains.
//
// All charges of a step expire together with the successes of that step. That
// is why the law holds for intervals longer than a Length. Each Length of such
// an interval keeps it by itself.
type Window struct {
	// Set by Open, and only read from then on.
	start    time.Time
	step     time.Duration // Length/steps, rounded down so that all steps fit in the Length
	num, den uint64        // Ratio

	mu  sync.Mutex
	now time.Duration // since start: when the clock was last read

	burst *rate.Limiter // guarded by mu, so that its time never goes back
	// The clock of the burst is the time that the host was not failing. A
	// Withdraw shows that the host fails and stops the clock, and the next
	// Deposit starts it.
	burstTime time.Duration
	failing   bool

	// tallies are those of the last steps, each at its number modulo steps.
	tallies [steps]tally

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
	fromBurst uint64 // the charges that took a token
}

// Open makes w, which is zero, the window of a new host. It allows ratio failed
// retries per success within length, and burst retries beyond that.
func (w *Window) Open(ratio float64, burst int, length time.Duration) {
	w.start = time.Now()
	w.step = length / steps
	w.num, w.den = fraction(ratio)
	w.burst = rate.NewLimiter(rate.Limit(float64(burst)/length.Seconds()), burst)
}

// Deposit records a success. It takes the lock and reads the clock once per
// batch. Batches grow while they are filled within one step, so that a host
// with few requests has exact times. The first deposit after a withdrawal is
// always a batch.
func (w *Window) Deposit() {
	if w.pending.Add(1) >= w.batch.Load() {
		w.endBatch()
	}
}

// endBatch is apart from Deposit, so that the compiler inlines Deposit.
func (w *Window) endBatch() {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.now / w.step
	w.update(1)
	w.failing = false
	// A batch that is filled within one step may be larger.
	if w.now/w.step == before {
		w.batch.Store(min(2*w.batch.Load()+1, maxBatch))
	} else {
		w.batch.Store(1)
	}
}

// RetrySucceeded is Deposit for a retry that Withdraw has charged for. It
// cancels the latest charge, and adds a token to the burst.
func (w *Window) RetrySucceeded() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.update(0)
	w.failing = false
	w.tally().successes++
	w.cancelCharge()
	w.addToken()
}

// Withdraw charges for a retry if the ratio or a token allows it, and reports
// whether one does.
func (w *Window) Withdraw() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.update(0)
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

// Refund cancels the latest charge, if there is one.
func (w *Window) Refund() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.update(0)
	w.cancelCharge()
}

// cancelCharge cancels the latest charge. It is not known which charge a refund
// is for. Most refunds follow soon after their charge, so the latest is the
// best guess. If the oldest were canceled, the remaining charges would seem to
// be later and later, and never expire. A refund without a charge in the Length
// does nothing. A refund whose own charge has expired cancels another one. The
// law allows that, because the expired charge was within its own Length. mu is
// held and w is up to date.
func (w *Window) cancelCharge() {
	step := w.now / w.step
	for i := range time.Duration(steps) {
		t := &w.tallies[(step+steps-i)%steps]
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
func (w *Window) addToken() {
	// Taking -1 token adds one. The limiter does not exceed its own maximum.
	w.burst.AllowN(w.burstNow(), -1)
}

// Balance returns how many calls of Withdraw would return true now.
func (w *Window) Balance() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.available()
}

// Counts returns the Balance, and the successes and the charges from which it
// follows.
func (w *Window) Counts() (balance, successes, charges int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	balance = w.available()
	s, c := w.total()
	return balance, int(s), int(c)
}

// available updates w, and returns how many retries it allows. mu is held.
func (w *Window) available() int {
	w.update(0)
	n := tokens(w.burst, w.burstNow())
	return n + int(min(w.left(), uint64(math.MaxInt-n)))
}

// update brings w up to date, and counts the pending deposits. The number own
// is how many of them the caller makes: 0 or 1. Those count as made now. mu is
// held, so times are in order. If the clock goes back all the same, w.now stays
// as it is.
func (w *Window) update(own uint64) {
	// The clock is read before the swap, because a deposit after the swap is
	// later than now, the time for which it will count.
	now := max(w.now, time.Since(w.start))
	pending := w.pending.Swap(0)
	// Another update may have counted the caller's deposit already.
	own = min(own, pending)
	w.tally().successes += pending - own

	first, last := w.now/w.step, now/w.step
	for i := range min(last-first, steps) {
		w.tallies[(first+1+i)%steps] = tally{}
	}
	if !w.failing {
		w.burstTime += now - w.now
	}
	w.now = now
	w.tally().successes += own
}

// tally returns the tally of the current step. mu is held.
func (w *Window) tally() *tally { return &w.tallies[w.now/w.step%steps] }

// burstNow returns the time of the burst's clock. mu is held.
func (w *Window) burstNow() time.Time { return w.start.Add(w.burstTime) }

// left returns how many more retries the ratio allows. mu is held and w is up
// to date.
func (w *Window) left() uint64 {
	successes, charges := w.total()
	// This is successes * num / den in 128 bits, saturated to 64.
	quota := uint64(math.MaxUint64)
	if hi, lo := bits.Mul64(successes, w.num); hi < w.den {
		quota, _ = bits.Div64(hi, lo, w.den)
	}
	return quota - min(quota, charges)
}

// total returns the counts of all steps. mu is held and w is up to date.
func (w *Window) total() (successes, charges uint64) {
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
