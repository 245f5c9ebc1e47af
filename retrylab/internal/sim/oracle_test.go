package sim_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/sim"
	"github.com/seed421102f4/httpretry/retrylab/internal/virtual"
	"github.com/seed421102f4/httpretry/strategies"
)

// A history is a policy, requests at random times, and the server's answers to
// their attempts.
type history struct {
	seed     uint64
	policy   func() httpretry.Policy // with strategies that start anew
	deadline time.Duration
	budget   httpretry.HostBudget
	shared   bool // one budget for all processes
	arrivals []arrival
	failing  float64
	exact    bool
}

type arrival struct {
	at      time.Duration
	process int
}

const processes = 2

func newHistory(seed uint64) *history {
	r := rand.New(rand.NewPCG(seed, 1))
	h := &history{seed: seed, failing: r.Float64()}
	h.policy = func() httpretry.Policy { return randomPolicy(seed) }
	if r.IntN(3) == 0 {
		h.deadline = time.Duration(r.Int64N(int64(20 * time.Second)))
	}
	h.budget = httpretry.HostBudget{Ratio: r.Float64() + 0.01, Burst: r.IntN(8) - 1, Strict: r.IntN(2) == 0}
	if r.IntN(3) == 0 {
		h.budget.Window = time.Duration(1+r.IntN(20)) * time.Second
	}
	h.shared = r.IntN(3) == 0
	// In some histories, one request fails, and waits end exactly at the
	// deadline or at MaxElapsed. Attempts do not, because it would not be
	// determined which comes first.
	if h.exact = seed%8 == 0; h.exact {
		h.failing = 1
		h.deadline = time.Duration(r.IntN(2)) * (30 + 100*time.Duration(10+r.IntN(6))) * time.Millisecond
		h.arrivals = []arrival{{0, 0}}
		return h
	}
	at, gap := time.Duration(0), []float64{1, 0.3, 0.1}[r.IntN(3)]*float64(time.Second)
	for range 5 + r.IntN(40) {
		at += time.Duration(r.ExpFloat64() * gap)
		h.arrivals = append(h.arrivals, arrival{at, r.IntN(processes)})
	}
	return h
}

func randomPolicy(seed uint64) httpretry.Policy {
	r := rand.New(rand.NewPCG(seed, 2))
	one := func(choices ...int) int { return choices[r.IntN(len(choices))] }
	backoff := func() strategies.Strategy {
		random := strategies.Seeded(r.Uint64())
		return []strategies.Strategy{
			strategies.FullJitter{Base: time.Second, Rand: random},
			strategies.DecorrelatedV2{Median: time.Second, Max: 10 * time.Second, Rand: random},
			strategies.AWSDecorrelated{Base: 300 * time.Millisecond, Rand: random},
			strategies.FastFirst{Of: strategies.EqualJitter{Rand: random}},
			strategies.Exponential{Base: 700 * time.Millisecond},
		}[r.IntN(5)]
	}
	p := httpretry.Policy{
		MaxAttempts: one(-1, 0, 1, 2, 5),
		Backoff:     backoff(),
		// In exact histories, no sum of these ends at the deadline.
		AttemptTimeout: time.Duration(one(0, 0, 420, 920)) * time.Millisecond,
		MaxElapsed:     time.Duration(one(0, 0, 3, 15)) * time.Second,
		MaxRetryAfter:  time.Duration(one(0, -1, 2, 5)) * time.Second,
		Cooldown:       httpretry.Cooldown(r.IntN(3)),
	}
	if seed%8 == 0 {
		p.Backoff = strategies.Constant{Wait: time.Duration(1+r.IntN(9)) * 100 * time.Millisecond}
		p.MaxElapsed = time.Duration(r.IntN(2)) * (30 + 100*time.Duration(r.IntN(15))) * time.Millisecond
		p.MaxAttempts = one(2, 3)
	}
	// Without a limit of attempts, something else must end each request.
	if p.MaxAttempts < 0 && p.MaxElapsed == 0 {
		p.MaxElapsed = 20 * time.Second
	}
	return p
}

// answer returns the server's answer to an attempt. It depends on nothing else,
// so that requests at the same time need no order.
func (h *history) answer(request, attempt int) sim.Answer {
	r := rand.New(rand.NewPCG(h.seed, uint64(request)<<20+uint64(attempt)))
	a := sim.Answer{After: time.Duration(1 + r.Int64N(int64(1200*time.Millisecond))), Status: http.StatusOK}
	if h.exact {
		return sim.Answer{After: time.Duration(30+100*r.IntN(10)) * time.Millisecond, Status: http.StatusBadGateway}
	}
	if r.Float64() > h.failing {
		return a
	}
	a.Status = []int{429, 429, 503, 503, 504, 404, 421, sim.Refused}[r.IntN(8)]
	// The engine has no rule for a second 421, which is Final.
	if a.Status == 421 && attempt > 1 {
		a.Status = 502
	}
	if (a.Status == 429 || a.Status == 503) && r.IntN(2) == 0 {
		a.RetryAfter = []time.Duration{time.Second, 3 * time.Second, 250 * time.Millisecond, 8 * time.Second}[r.IntN(4)]
	}
	return a
}

// An oracle records the behavior of RetryTransports in a history.
type oracle struct {
	*history
	mu     sync.Mutex
	began  time.Time
	starts []time.Duration
	events [][]sim.Event
	sent   [][]time.Duration
	awake  [][]time.Duration // when a request was sent, had an event, or began or ended a wait
	calls  calls
}

// calls are those of budgets.
type calls struct {
	mu  sync.Mutex
	all []string
}

func (c *calls) add(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, fmt.Sprintf(format, args...))
}

// sorted returns the calls, which have no order if they are at one time.
func (c *calls) sorted() []string { return slices.Sorted(slices.Values(c.all)) }

// A watchedBudget notes its calls.
type watchedBudget struct {
	httpretry.Budget
	began time.Time
	calls *calls
}

// text returns the fields of an attempt. The simulation has other origins.
func text(a httpretry.AttemptResult) string {
	a.Origin = ""
	return fmt.Sprintf("%+v", a)
}

func (b watchedBudget) Withdraw(ctx context.Context, last httpretry.AttemptResult) bool {
	allowed := b.Budget.Withdraw(ctx, last)
	b.calls.add("%v: withdraw after %s: %v", time.Since(b.began), text(last), allowed)
	return allowed
}

func (b watchedBudget) Refund(last httpretry.AttemptResult) {
	b.calls.add("%v: refund after %s", time.Since(b.began), text(last))
	b.Budget.Refund(last)
}

func (b watchedBudget) Record(ended, charged httpretry.AttemptResult) {
	// The simulation does not set the clock for a failure.
	at := "at some time"
	if ended.Succeeded() {
		at = time.Since(b.began).String()
	}
	b.calls.add("%s: %s after %s", at, text(ended), text(charged))
	b.Budget.Record(ended, charged)
}

type numberKey struct{}

// A watchedContext notes when a RetryTransport asks for its deadline or its
// end, as it does before and after each wait for the end of a cool-down.
type watchedContext struct {
	context.Context
	o      *oracle
	number int
}

func (c watchedContext) Deadline() (time.Time, bool) {
	c.o.mu.Lock()
	defer c.o.mu.Unlock()
	c.o.isAwake(c.number)
	return c.Context.Deadline()
}

func (c watchedContext) Done() <-chan struct{} {
	c.o.mu.Lock()
	defer c.o.mu.Unlock()
	c.o.isAwake(c.number)
	return c.Context.Done()
}

// isAwake notes that a request is awake now. The mutex is held.
func (o *oracle) isAwake(number int) {
	now, awake := time.Since(o.began), o.awake[number]
	if len(awake) == 0 || awake[len(awake)-1] != now {
		o.awake[number] = append(awake, now)
	}
}

func (o *oracle) RoundTrip(req *http.Request) (*http.Response, error) {
	number := req.Context().Value(numberKey{}).(int)
	o.mu.Lock()
	o.sent[number] = append(o.sent[number], time.Since(o.began))
	o.isAwake(number)
	o.mu.Unlock()
	a := o.answer(number, httpretry.Attempt(req.Context()))
	timer := time.NewTimer(a.After)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	}
	if a.Status == sim.Refused {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	resp := &http.Response{StatusCode: a.Status, ProtoMajor: 1, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: req}
	switch {
	case a.RetryAfter == 0:
	case a.RetryAfter%time.Second == 0:
		resp.Header.Set("Retry-After", strconv.Itoa(int(a.RetryAfter.Seconds())))
	default:
		resp.Header.Set("Retry-After-Ms", strconv.Itoa(int(a.RetryAfter.Milliseconds())))
	}
	return resp, nil
}

func (o *oracle) observe(ctx context.Context, e httpretry.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	number := ctx.Value(numberKey{}).(int)
	o.isAwake(number)
	status := 0
	switch {
	case e.Response != nil:
		status = e.Response.StatusCode
	// A wait has no response either, but the attempt before it has its event.
	case len(o.sent[number]) > len(o.attemptsOf(number)):
		status = sim.TimedOut
		if opErr, ok := e.Err.(*net.OpError); ok && opErr.Op == "dial" {
			status = sim.Refused
		}
	}
	o.events[number] = append(o.events[number], sim.Event{
		Request: number, Process: o.arrivals[number].process, Start: o.starts[number], At: o.starts[number] + e.Elapsed,
		Status: status, Attempt: e.Attempt.Number, Wait: e.Wait, Reason: e.Reason,
	})
}

// attemptsOf returns the events of a request that are about an attempt.
func (o *oracle) attemptsOf(number int) (events []sim.Event) {
	for _, e := range o.events[number] {
		if e.Status != 0 {
			events = append(events, e)
		}
	}
	return events
}

// run sends the requests of the history through one RetryTransport for each
// process.
func (o *oracle) run(t *testing.T) {
	o.began = time.Now()
	n := len(o.arrivals)
	o.starts, o.events = make([]time.Duration, n), make([][]sim.Event, n)
	o.sent, o.awake = make([][]time.Duration, n), make([][]time.Duration, n)
	budgets := make([]httpretry.HostBudget, processes)
	transports := make([]*httpretry.RetryTransport, processes)
	policy := o.policy()
	for i := range transports {
		b := &budgets[i]
		if o.shared {
			b = &budgets[0]
		}
		b.Ratio, b.Burst, b.Window, b.Strict = o.budget.Ratio, o.budget.Burst, o.budget.Window, o.budget.Strict
		policy.Budget = watchedBudget{b, o.began, &o.calls}
		var err error
		transports[i], err = httpretry.New(httpretry.Config{Base: o, Policy: policy, Observe: o.observe})
		require.NoError(t, err)
	}
	var wg sync.WaitGroup
	for i, a := range o.arrivals {
		wg.Go(func() {
			time.Sleep(a.at)
			o.starts[i] = time.Since(o.began)
			// The context of t belongs to another bubble.
			ctx := context.WithValue(context.Background(), numberKey{}, i)
			if o.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, o.deadline)
				defer cancel()
			}
			ctx = watchedContext{ctx, o, i}
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://a.test/", nil)
			if !assert.NoError(t, err) {
				return
			}
			if resp, err := transports[a.process].RoundTrip(req); err == nil {
				assert.NoError(t, resp.Body.Close())
			}
		})
	}
	wg.Wait()
}

// A replay is a Fleet that goes through the same history, with the random
// numbers that the RetryTransports drew, whose source has no seed.
type replay struct {
	*oracle
	t      *testing.T
	events [][]sim.Event
	drawn  map[string][]float64 // by kind, as shares of their ranges
	calls  calls
}

func (r *replay) fleet() *sim.Fleet {
	r.events = make([][]sim.Event, len(r.arrivals))
	next := 0
	budgets := make([]httpretry.HostBudget, 1)
	b := &budgets[0]
	b.Ratio, b.Burst, b.Window, b.Strict = r.budget.Ratio, r.budget.Burst, r.budget.Window, r.budget.Strict
	watched := watchedBudget{b, time.Now(), &r.calls}
	f := &sim.Fleet{
		Policy:   r.policy(),
		Deadline: r.deadline,
		// The processes are hosts of one HostBudget, as in large fleets.
		Budget: func(process int) (httpretry.Budget, string) {
			if r.shared {
				process = 0
			}
			return watched, fmt.Sprint(process)
		},
		Arrival: func() (time.Duration, int, bool) {
			if next == len(r.arrivals) {
				return 0, 0, false
			}
			a := r.arrivals[next]
			next++
			return a.at, a.process, true
		},
		Server:  r,
		Jitter:  r.jitter,
		Spread:  r.spread,
		Observe: func(e sim.Event) { e.Sent = 0; r.events[e.Request] = append(r.events[e.Request], e) },
	}
	return f
}

// Answer implements sim.Server.
func (r *replay) Answer(_ time.Duration, request, attempt int) sim.Answer {
	return r.answer(request, attempt)
}

// jitter returns the jitter that the RetryTransport added to the wait.
func (r *replay) jitter(request int, wait, width time.Duration) time.Duration {
	if i := len(r.events[request]); i < len(r.oracle.events[request]) {
		if added := r.oracle.events[request][i].Wait - wait; added >= 1 && added <= width {
			r.drawn["jitter"] = append(r.drawn["jitter"], float64(added)/float64(width))
			return added
		}
	}
	assert.Fail(r.t, "a RetryTransport adds another jitter", "request %d, a wait of %v and from 1 to %v", request, wait, width)
	return width
}

// spread returns how long the RetryTransport waited after a cool-down, until it
// sent the request or found the next cool-down.
func (r *replay) spread(request int, now, from, to time.Duration) time.Duration {
	// The bounds are rounded.
	const off = 2
	awake, waited := r.awake[request], time.Duration(0)
	i := slices.Index(awake, now)
	if i >= 0 && i+1 < len(awake) && !slices.Contains(r.sent[request], now) {
		waited = awake[i+1] - now
	}
	if i < 0 || waited > max(to+off, 0) || waited > 0 && waited < from-off {
		assert.Fail(r.t, "a RetryTransport waits for another time after a cool-down", "request %d: %v, not from %v to %v", request, waited, from, to)
		return to
	}
	switch drawn := float64(waited-from) / float64(to-from); {
	case to-from < 100*off || waited == 0:
	case len(r.events[request]) > 0:
		r.drawn["retry"] = append(r.drawn["retry"], drawn)
	default:
		r.drawn["first attempt"] = append(r.drawn["first attempt"], drawn)
	}
	return waited
}

// Each decision of the simulation is that of a RetryTransport, and each budget
// learns the same.
func TestDecidesAsARetryTransport(t *testing.T) {
	clock := virtual.New(t)
	const histories = 1000
	reasons, events := map[httpretry.Reason]int{}, 0
	drawn := map[string][]float64{}
	throttled, refunds := 0, 0
	for seed := range uint64(histories) {
		o := &oracle{history: newHistory(seed)}
		clock(func() { o.run(t) })
		r := &replay{oracle: o, t: t, drawn: drawn}
		clock(func() { require.NoError(t, r.fleet().Run()) })
		require.Equal(t, o.events, r.events, "history %d", seed)
		require.Equal(t, o.calls.sorted(), r.calls.sorted(), "history %d", seed)
		throttled += strings.Count(strings.Join(r.calls.all, ""), "Throttled:true}: true")
		refunds += strings.Count(strings.Join(r.calls.all, ""), ": refund after")
		for _, es := range o.events {
			for _, e := range es {
				reasons[e.Reason]++
				events++
			}
		}
	}
	t.Logf("%d events, %v", events, reasons)
	assert.Greater(t, throttled, 100, "retries that are free")
	assert.Greater(t, refunds, 20)
	// If the simulation had other ranges than the RetryTransports, the numbers
	// that those drew would not be uniform in them.
	for kind, least := range map[string]int{"jitter": 800, "retry": 150, "first attempt": 300} {
		d := drawn[kind]
		slices.Sort(d)
		require.Greater(t, len(d), least, kind)
		for _, p := range []float64{0.1, 0.25, 0.5, 0.75, 0.9} {
			// Five standard deviations of the median.
			assert.InDelta(t, p, d[int(p*float64(len(d)))], 2.5/math.Sqrt(float64(len(d))), kind)
		}
	}
	for reason := httpretry.ReasonNone; reason <= httpretry.ReasonBudget; reason++ {
		switch reason {
		case httpretry.ReasonCanceled, httpretry.ReasonCallerRetries, httpretry.ReasonNotIdempotent, httpretry.ReasonNotReplayable, httpretry.ReasonDoNotRetry:
		default:
			assert.NotZero(t, reasons[reason], "no request ended with %v", reason)
		}
	}
}
