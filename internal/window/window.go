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
)

const (
	// steps is the number of parts of a Length that expire together.
	steps = 10

	// maxBatch is the maximum number of calls of Deposit for one reading of the
	// clock.
	maxBatch = 32

	// bonus is what a retry that succeeds cancels beyond its own cost.
	bonus = 1

	// recentSteps steps of recentStep are the last minute, of which Recent has
	// the attempts.
	recentSteps = 12
	recentStep  = 5 * time.Second
)

// A Window is the budget of one host. It is safe for concurrent use after Open.
// Ratio, Burst and Length are the arguments of Open. A Window allows a retry if
// then
//
//	cost of failed retries <= Burst + Ratio * successes
//
// Both count for a Length of the host's time, which stops at a Withdraw and goes
// on at the next success. A retry counts as failed until it succeeds. Then its
// cost is canceled, and the bonus of 1 more. So, for any interleaving of calls
// and any interval of duration T:
//
//	cost of charges - refunds <= Ratio * (successes in T and the Length before)
//	                             + Burst * (1 + T/Length)
//	                             + retries that succeeded in T
//
// where the Length before is one of the host's time. While the host answers
// nothing but failures, however long that lasts:
//
//	cost of charges - refunds <= Ratio * (successes in the Length before) + Burst
//
// It counts successes because an overloaded host has few of them. A budget that
// counts requests allows most retries when it should allow fewest.
//
// It counts them within a Length because successes of an hour ago do not show
// how the host is now. If they were saved up, they would allow a storm of
// retries when it fails. Ratio * Length is how much of its own traffic a process
// may send again to a host that is down. A restart of the host needs that, and
// it does not grow with the number of processes, as the Burst does.
//
// It charges for failed retries only. A host that fails one attempt in five at
// random needs more retries than a Ratio allows, if that is small enough to
// protect the host in an outage. These retries succeed, so they are wanted work,
// and their bonus pays for others. In an outage none succeeds.
//
// The time stops because each process sends its budget to a host that is down.
// If charges expired meanwhile, enough processes could keep the host down.
//
// All charges of a step expire together with its successes. So each Length of a
// longer interval keeps the law by itself.
type Window struct {
	// Set by Open, and only read from then on.
	start    time.Time
	step     time.Duration // Length/steps, rounded down so that all steps fit in the Length
	num, den uint64        // Ratio
	burst    uint64

	mu      sync.Mutex
	clock   time.Duration // since start, when the clock was last read
	now     time.Duration // the host's time then
	failing bool          // since a Withdraw, and until a success: now stands still

	// tallies are those of the last steps, each at its number modulo steps.
	tallies [steps]tally

	// recent has the attempts of the last minute of the clock, which goes on while
	// the host's time stands still. Each step is at its number modulo recentSteps.
	recent [recentSteps]recentTally

	// pending counts the deposits since the clock was last read. They count as
	// made at that time, so none of them counts for too long. The deposit that
	// fills the batch reads the clock.
	pending atomic.Uint64
	batch   atomic.Uint64
}

// A tally has the counts of one step.
type tally struct {
	successes uint64
	charges   uint64 // the cost of retries, without what was canceled
}

// A recentTally has the attempts of one recentStep.
type recentTally struct {
	step                int64
	successes, failures uint64
}

// Open makes w, which is zero, the window of a new host. It allows failed
// retries that cost ratio per success within length, and burst beyond that.
func (w *Window) Open(ratio float64, burst int, length time.Duration) {
	w.start = time.Now()
	w.step = length / steps
	w.num, w.den = fraction(ratio)
	w.burst = uint64(burst)
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

// RetrySucceeded is Deposit for a retry that Withdraw has charged cost for. It
// cancels that charge, and the bonus.
func (w *Window) RetrySucceeded(cost int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.update(0)
	w.failing = false
	w.tally().successes++
	w.recently().successes++
	w.cancel(uint64(cost) + bonus)
}

// Fail records an attempt that failed, for Recent only.
func (w *Window) Fail() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.update(0)
	w.recently().failures++
}

// Withdraw charges cost for a retry if the rule allows it, and reports whether
// it does.
func (w *Window) Withdraw(cost int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.update(0)
	w.failing = true
	w.batch.Store(1)
	if w.left() < uint64(cost) {
		return false
	}
	w.tally().charges += uint64(cost)
	return true
}

// Refund cancels the charge of cost for a retry that is not sent.
func (w *Window) Refund(cost int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.update(0)
	w.cancel(uint64(cost))
}

// cancel cancels the latest charges of that cost. It is not known which charge a
// refund is for, and most follow soon after theirs. If the oldest were canceled,
// the remaining charges would seem to be later and later, and never expire. A
// refund without a charge in the Length does nothing. One whose own charge has
// expired cancels another, which the law allows. mu is held and w is up to date.
func (w *Window) cancel(cost uint64) {
	step := w.now / w.step
	for i := range time.Duration(steps) {
		t := &w.tallies[(step+steps-i)%steps]
		n := min(cost, t.charges)
		t.charges -= n
		cost -= n
	}
}

// Balance returns how many calls of Withdraw(1) would return true now.
func (w *Window) Balance() int {
	balance, _, _ := w.Counts()
	return balance
}

// Counts returns the Balance, and the successes and the charges from which it
// follows.
func (w *Window) Counts() (balance, successes, charges int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.update(0)
	s, c := w.total()
	return int(min(w.left(), math.MaxInt)), int(s), int(c)
}

// Recent returns the attempts of about the last minute.
func (w *Window) Recent() (successes, failures int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.update(0)
	first := int64(w.clock/recentStep) - recentSteps + 1
	for _, t := range w.recent {
		if t.step >= first {
			successes += int(t.successes)
			failures += int(t.failures)
		}
	}
	return successes, failures
}

// recently returns the recentTally of the last reading of the clock. mu is held.
func (w *Window) recently() *recentTally {
	step := int64(w.clock / recentStep)
	t := &w.recent[step%recentSteps]
	if t.step != step {
		*t = recentTally{step: step}
	}
	return t
}

// update brings w up to date, and counts the pending deposits. The number own
// is how many of them the caller makes: 0 or 1. Those count as made now. mu is
// held, so times are in order. If the clock goes back all the same, the host's
// time stays as it is.
func (w *Window) update(own uint64) {
	// The clock is read before the swap, because a deposit after the swap is
	// later than now, the time for which it will count.
	clock := max(w.clock, time.Since(w.start))
	pending := w.pending.Swap(0)
	// Another update may have counted the caller's deposit already.
	own = min(own, pending)
	w.tally().successes += pending - own
	if pending > own {
		w.recently().successes += pending - own
	}

	if !w.failing {
		w.advance(w.now + clock - w.clock)
	}
	w.clock = clock
	w.tally().successes += own
	if own > 0 {
		w.recently().successes++
	}
}

// advance sets the host's time to now. The steps that begin since then replace
// those of a Length before. mu is held.
func (w *Window) advance(now time.Duration) {
	first, last := w.now/w.step, now/w.step
	for i := range min(last-first, steps) {
		w.tallies[(first+1+i)%steps] = tally{}
	}
	w.now = now
}

// tally returns the tally of the current step. mu is held.
func (w *Window) tally() *tally { return &w.tallies[w.now/w.step%steps] }

// left returns the cost of the retries that the rule still allows. mu is held
// and w is up to date.
func (w *Window) left() uint64 {
	successes, charges := w.total()
	// This is successes * num / den in 128 bits, saturated to 64.
	quota := uint64(math.MaxUint64)
	if hi, lo := bits.Mul64(successes, w.num); hi < w.den {
		quota, _ = bits.Div64(hi, lo, w.den)
	}
	quota += min(w.burst, math.MaxUint64-quota)
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
