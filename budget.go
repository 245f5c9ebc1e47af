package httpretry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/time/rate"
)

// A Budget decides how many retries a host may get. It bounds the load that retries add when a host fails for
// everybody, which no limit on the attempts of one request can do. Successes deposit, retries withdraw; the words are
// those of Finagle's RetryBudget.
//
// Every retry withdraws, those of requests that never reached the host too.
//
// Both methods may be called concurrently. Their host is that of the request's URL in canonical form: lower case, ASCII,
// without a trailing dot, an IPv6 address in brackets, and with the port unless it is the scheme's default: "a.test" for
// https://A.test:443/, "a.test:8443" for another port.
type Budget interface {
	// Deposit records that a request to host got an answer that is not a transient failure. It is called once for such
	// a request, however many attempts it took. It is on the path of every request, so it must not wait.
	Deposit(host string)

	// Withdraw reports whether one retry may go to host, and takes the price of the retry if so. It is asked last, when
	// nothing else stands in the way of the retry. ctx is the request's context: a budget that has to ask elsewhere
	// must not take longer than ctx lasts.
	Withdraw(ctx context.Context, host string) bool
}

var (
	_ Budget = (*HostBudget)(nil)
	_ Budget = Unlimited{}
)

// Unlimited is a [Budget] that never refuses. It is for tests, and for clients too few to overload a host.
type Unlimited struct{}

// Deposit does nothing.
func (Unlimited) Deposit(string) {}

// Withdraw returns true.
func (Unlimited) Withdraw(context.Context, string) bool { return true }

// A HostBudget is a [Budget] that allows each host retries in proportion to the successes it had lately, and a few
// whatever it had. The zero value is ready to use. A HostBudget is safe for concurrent use, may be shared by any number
// of transports and must not be copied. Its fields must not change after first use: they are read when a host is first
// seen, so some hosts would follow the change and others not.
//
// A retry is allowed if, counting it, the retries of the last Window are at most Ratio times the successes of the last
// Window; or else if the Floor, a token bucket that holds Floor tokens and gains Floor tokens per Window, has one left
// to spend. All retries count, those from the Floor too. The bucket is asked only when the ratio refuses.
//
// # Why
//
// Successes, because they are what an overloaded host runs out of. A budget that counts requests, as many do, grants
// most when it ought to grant least: every new request that fails brings its share of retries along, and they keep the
// host overloaded after the cause is gone. Here, a host that answers nothing gets the Floor and no more.
//
// A window, because credit must not be hoarded. Successes of an hour ago say nothing about the host now; saved up, they
// would pay for a storm of retries in the first seconds of an outage.
//
// A small floor, because a client that has just started, or is seldom used, has no successes, and its first request
// deserves a retry all the same. Small, because the floor is what each client sends to a host that is down: ten retries
// a second from every client, a common value, can be all it takes to keep it down.
//
// # Guarantee
//
// For any interleaving of calls and any interval of length T, a host gets, as long as it is remembered, at most
//
//	Ratio × (successes in the interval and the Window before it, plus 64) + Floor × (1 + T/Window)
//
// retries. The ratio is kept in integers, without drift: 0.1 allows 3 retries for 30 successes and 2 for 29. Time is
// monotonic, and exact to a nanosecond.
//
// The 64 are the price of a Deposit that, fifteen times out of sixteen, takes no lock and does not look at the clock:
// fewer than 64 successes wait to be counted at any time, and count from the moment when their batch is full or the
// host's next Withdraw or Balance comes. Withdraw sees every success whose Deposit has returned. The window moves in
// tenths of its length, so a success counts for at least nine tenths of a Window, and a retry for as long as a success
// counted with it.
//
// # Hosts
//
// Each host has a window and a Floor of its own, so one that is down takes nothing from another. The 1024 hosts used
// last are remembered; a host that was forgotten starts afresh, with no successes and a full Floor. So whoever can
// choose the hosts of requests gets Floor retries for every new one, and can make the budget forget hosts that others
// have not used in between. Where that is a danger, limit the hosts before requests are made.
type HostBudget struct {
	// Ratio is the number of retries per success, from 0.000001 to 1000000. 0 means 0.1. It stands for the simplest
	// fraction with this floating-point value: 0.1 is one tenth and 1.0/3 one third, exactly.
	Ratio float64

	// Floor is the number of retries per Window that are allowed whatever the successes, at most 1000000. 0 means 3;
	// negative means none.
	Floor int

	// Window is how long successes and retries count, from a millisecond to a year of 365 days. 0 means 10 seconds.
	Window time.Duration

	hosts perHost[window]
}

const (
	defaultRatio  = 0.1
	defaultFloor  = 3
	defaultWindow = 10 * time.Second

	// Within these, the fraction for Ratio and the Floor's tokens, which are floats, are exact by a wide margin.
	maxRatio = 1e6
	minRatio = 1 / maxRatio
	maxFloor = 1_000_000

	// A shorter window is all but certainly a number that lost its unit. In a much longer one the time until the next
	// token overflows.
	minWindow = time.Millisecond
	maxWindow = 365 * 24 * time.Hour
)

// Validate reports all problems of b's fields, one on each line, each line beginning with the field, such as
// "HostBudget.Ratio: -0.1 is negative". A HostBudget that is used although it is not valid refuses every retry.
func (b *HostBudget) Validate() error {
	if b == nil {
		return errors.New("HostBudget: is nil")
	}
	var errs []error
	switch r := b.Ratio; {
	case math.IsNaN(r):
		errs = append(errs, errors.New("HostBudget.Ratio: NaN is not a number"))
	case r < 0:
		errs = append(errs, fmt.Errorf("HostBudget.Ratio: %v is negative", r))
	case r > 0 && r < minRatio:
		errs = append(errs, fmt.Errorf("HostBudget.Ratio: %v is less than %v", r, minRatio))
	case r > maxRatio:
		errs = append(errs, fmt.Errorf("HostBudget.Ratio: %v is more than %v", r, maxRatio))
	}
	if b.Floor > maxFloor {
		errs = append(errs, fmt.Errorf("HostBudget.Floor: %d is more than %d", b.Floor, maxFloor))
	}
	switch w := b.Window; {
	case w < 0:
		errs = append(errs, fmt.Errorf("HostBudget.Window: %v is negative", w))
	case w > 0 && w < minWindow:
		errs = append(errs, fmt.Errorf("HostBudget.Window: %v is less than %v", w, minWindow))
	case w > maxWindow:
		errs = append(errs, fmt.Errorf("HostBudget.Window: %v is more than %v", w, maxWindow))
	}
	return errors.Join(errs...)
}

// Deposit counts a success of host. It waits for nothing but, now and then, another goroutine that is counting.
func (b *HostBudget) Deposit(host string) { b.hosts.get(host, b.open).deposit() }

// Withdraw reports whether one retry may go to host, and counts it if so. The answer is at hand and depends on the
// budget alone: ctx is not used, not even if it is done.
func (b *HostBudget) Withdraw(_ context.Context, host string) bool {
	return b.hosts.get(host, b.open).withdraw()
}

// Balance returns how many retries host, in the canonical form that [Budget] describes, has left at the moment: that many
// calls of Withdraw would return true. A host that is not remembered has what a new one gets, the Floor. Asking takes nothing and does not count as a use of host.
func (b *HostBudget) Balance(host string) int {
	if w := b.hosts.peek(host); w != nil {
		return w.balance()
	}
	_, floor, _ := b.settings()
	return floor
}

// settings returns the fields with their defaults, and what refuses every retry if they are not valid.
func (b *HostBudget) settings() (ratio float64, floor int, length time.Duration) {
	if b.Validate() != nil {
		return 0, 0, defaultWindow
	}
	return cmp.Or(b.Ratio, defaultRatio), max(cmp.Or(b.Floor, defaultFloor), 0), cmp.Or(b.Window, defaultWindow)
}

// open makes w, which is zero, the window of a new host.
func (b *HostBudget) open(w *window) {
	ratio, floor, length := b.settings()
	w.start = time.Now()
	w.step = length / windowSteps
	w.num, w.den = fraction(ratio)
	w.floor = rate.NewLimiter(rate.Limit(float64(floor)/length.Seconds()), floor)
}

const (
	// windowSteps is the number of parts of a Window that expire together.
	windowSteps = 10

	// A deposit is counted in one of so many stripes, and the one that fills a batch moves it into the window. The
	// product is the slack in HostBudget's guarantee. More stripes keep cores apart in the counters, larger batches
	// keep them apart at the lock and save looks at the clock.
	windowStripes = 4
	stripeBatch   = 16
)

// A window is the budget of one host.
type window struct {
	// Set by open, and only read from then on.
	start    time.Time
	step     time.Duration // Window/windowSteps, rounded down: all steps together must not exceed the Window
	num, den uint64        // Ratio
	floor    *rate.Limiter // used with mu held, so that its time never goes back

	_       [64]byte // deposits read what is above and write what is below, which must not share a cache line
	pending [windowStripes]stripe

	mu  sync.Mutex
	now time.Duration // since start: the latest time seen
	// tallies are those of the last steps, each at its number modulo windowSteps. Successes and retries expire
	// together. That is what makes the guarantee hold for intervals longer than a window: cut into windows that do not
	// overlap, each of them holds by itself.
	tallies [windowSteps]tally
}

// A tally is what happened in one step. It cannot wrap around: each call adds at most one, and nobody lives to make
// 2⁶⁴.
type tally struct{ successes, retries uint64 }

// A stripe counts deposits that are not in the window yet, in a cache line of its own.
type stripe struct {
	n atomic.Uint64
	_ [56]byte
}

func (w *window) deposit() {
	s := &w.pending[stripeIndex()]
	// Not just the one that makes it exactly batch: if its goroutine is held up here, the next one does the work.
	if s.n.Add(1) < stripeBatch {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turn()
	w.collect(s)
}

func (w *window) withdraw() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.refresh()
	if w.left() == 0 && !w.floor.AllowN(now, 1) {
		return false
	}
	w.tally().retries++
	return true
}

func (w *window) balance() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.refresh()
	return int(min(w.left(), math.MaxInt-maxFloor)) + tokens(w.floor, now)
}

// tokens returns how many tokens l would hand out at now. Like l it takes a token that is less than a nanosecond away
// for one that is there, so that roundings on the way to a token make no difference.
func tokens(l *rate.Limiter, now time.Time) int {
	there := l.TokensAt(now)
	whole := math.Floor(there)
	if (whole+1-there)/float64(l.Limit())*float64(time.Second) < 1 {
		whole++
	}
	return int(whole)
}

// refresh moves w to the present, which it returns, and counts all deposits made so far. mu is held.
func (w *window) refresh() time.Time {
	w.turn()
	for i := range w.pending {
		if s := &w.pending[i]; s.n.Load() > 0 {
			w.collect(s)
		}
	}
	return w.start.Add(w.now)
}

// turn moves w to the present and drops the steps that are too old. mu is held, which keeps time in order; should the
// clock go back all the same, it stands still here. turn comes before collect: if time passes in between, the successes
// collected count as older than they are, which is the safe side.
func (w *window) turn() {
	before := w.now
	w.now = max(before, time.Since(w.start))
	first, last := before/w.step, w.now/w.step
	for i := range min(last-first, windowSteps) {
		w.tallies[(first+1+i)%windowSteps] = tally{}
	}
}

// collect moves the deposits of s into the current step. mu is held.
func (w *window) collect(s *stripe) { w.tally().successes += s.n.Swap(0) }

// tally returns the tally of the current step. mu is held.
func (w *window) tally() *tally { return &w.tallies[w.now/w.step%windowSteps] }

// left returns how many more retries the ratio allows. mu is held and w is up to date.
func (w *window) left() uint64 {
	var successes, retries uint64
	for _, t := range w.tallies {
		successes += t.successes
		retries += t.retries
	}
	quota := uint64(math.MaxUint64)
	if hi, lo := bits.Mul64(successes, w.num); hi < w.den {
		quota, _ = bits.Div64(hi, lo, w.den)
	}
	return quota - min(quota, retries)
}

// stripeIndex spreads goroutines over the stripes, by the addresses of their stacks. The same goroutine tends to get
// the same stripe, which therefore tends to stay in the cache of one core; a random one would not, and costs more to
// draw. Nothing but speed depends on it.
func stripeIndex() uint64 {
	var here byte
	return uint64(uintptr(unsafe.Pointer(&here))) * 0x9e3779b97f4a7c15 >> 32 % windowStripes // 2⁶⁴ over the golden ratio
}

// fraction returns the simplest fraction that rounds to ratio, a float64: 1/10 for 0.1, though the float64 is a bit
// more than that. It is the first convergent of ratio's continued fraction that does. By Legendre's theorem, that finds
// every fraction up to one with a denominator below 2²⁶, such as all decimals of seven places; any other is as close to
// ratio as a float64 can tell. Remainders are exact in floating point, hence so is Euclid's algorithm.
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
