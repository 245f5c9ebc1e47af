package httpretry_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// A setting is a HostBudget in whole numbers.
type setting struct {
	num, den int64 // ratio
	burst    int64
	window   time.Duration
}

func (s setting) String() string {
	return fmt.Sprintf("%d:%d, %d in %v", s.num, s.den, s.burst, s.window)
}

func (s setting) budget() *httpretry.HostBudget {
	burst := int(s.burst)
	if burst == 0 {
		burst = -1
	}
	return &httpretry.HostBudget{
		Ratio: float64(s.num) / float64(s.den), Burst: burst, Window: s.window}
}

var settings = []setting{
	{1, 5, 5, 30 * time.Second}, // the default
	{1, 10, 5, 10 * time.Second},
	{1, 10, 0, 10 * time.Second},
	{1, 10, 3, 10 * time.Second},
	{2, 5, 0, time.Second},
	{2, 5, 2, time.Second},
	{1, 3, 1, time.Second},
	{1, 1, 4, 123 * time.Millisecond},
	{5, 2, 1, time.Minute},
	{1, 100, 10, 7 * time.Second},
}

// pause returns a wait of the kind that finds mistakes: none, short, or at the
// edge of a step or window.
func (s setting) pause(r *rand.Rand) time.Duration {
	switch r.IntN(12) {
	case 0:
		return s.window + time.Duration(r.IntN(3)-1)
	case 1:
		return s.window/10 + time.Duration(r.IntN(3)-1)
	case 2:
		return time.Duration(r.Int64N(int64(2 * s.window)))
	case 3, 4, 5:
		return time.Duration(r.Int64N(int64(s.window / 20)))
	}
	return 0
}

// afterTimeout is the result of an attempt whose retry costs 2.
func afterTimeout() httpretry.AttemptResult {
	after := contract.Failure(budgetOrigin)
	after.Timeout = true
	return after
}

// retrySucceeds records the success of a retry that was charged for.
func retrySucceeds(b httpretry.Budget, after httpretry.AttemptResult) {
	b.Record(httpretry.AttemptResult{
		Origin: budgetOrigin, Number: 2, Status: 200}, after)
}

// A model is the budget of one host in the plainest form: a record of all that
// happened, which is counted from its beginning each time.
type model struct {
	setting
	clock     time.Duration
	now       time.Duration // in the host's time, as successes and charges
	failing   bool          // now stands still
	successes []time.Duration
	charges   []time.Duration // those of 1 that were not canceled
}

// at sets the clock.
func (m *model) at(clock time.Duration) *model {
	if !m.failing {
		m.now += clock - m.clock
	}
	m.clock = clock
	return m
}

// recent returns how many of times count now. They are in order.
func (m *model) recent(times []time.Duration) (n int64) {
	step := m.window / 10
	for _, at := range times {
		if at/step > m.now/step-10 {
			n++
		}
	}
	return n
}

func (m *model) left() int64 {
	return max(m.burst+m.num*m.recent(m.successes)/m.den-m.recent(m.charges), 0)
}

func (m *model) withdraw(cost int64) bool {
	m.failing = true
	if m.left() < cost {
		return false
	}
	for range cost {
		m.charges = append(m.charges, m.now)
	}
	return true
}

func (m *model) deposit() {
	m.failing = false
	m.successes = append(m.successes, m.now)
}

// cancel cancels the latest charges.
func (m *model) cancel(cost int64) {
	m.charges = m.charges[:len(m.charges)-int(min(cost, m.recent(m.charges)))]
}

// Where Balance looks at the clock before each deposit, the time of each
// success is known, and the budget is the model.
func TestHostBudgetEqualsTheModel(t *testing.T) {
	for _, s := range settings {
		t.Run(s.String(), func(t *testing.T) {
			for seed := range uint64(15) {
				synctest.Test(t,
					func(t *testing.T) { equalsTheModel(t, s, rand.New(rand.NewPCG(seed, 5))) })
			}
		})
	}
}

func equalsTheModel(t *testing.T, s setting, r *rand.Rand) {
	b, m := s.budget(), &model{setting: s}
	begin := time.Now()
	of := map[int64]httpretry.AttemptResult{1: contract.Failure(budgetOrigin), 2: afterTimeout()}
	b.Refund(of[1])
	require.Equal(t, m.withdraw(1), b.Withdraw(t.Context(), of[1])) // begins the first step
	for range 150 {
		time.Sleep(s.pause(r))
		m.at(time.Since(begin))
		require.EqualValues(t, m.left(), contract.Balance(b, budgetOrigin), "at %v", m.clock)
		action := r.IntN(4)
		for range r.IntN(20) {
			cost := 1 + r.Int64N(2)
			switch action {
			case 0:
				contract.Succeed(b, budgetOrigin, false)
				m.deposit()
			case 1:
				retrySucceeds(b, of[cost])
				m.deposit()
				m.cancel(cost + 1)
			case 2:
				require.Equal(t, m.withdraw(cost), b.Withdraw(t.Context(), of[cost]),
					"%d at %v", cost, m.clock)
			case 3:
				b.Refund(of[cost])
				m.cancel(cost)
			}
		}
		require.EqualValues(t, m.left(), contract.Balance(b, budgetOrigin), "at %v", m.clock)
	}
}

// A moment has the events at one time, in any order.
type moment struct {
	at        time.Duration
	host      time.Duration // the least time of the host that has passed
	successes int64         // those of retries included
	helped    int64         // retries that succeeded
	charges   int64         // the cost of retries
	refunds   int64         // the cost of retries that were not sent or succeeded
	wasted    int64         // of the charges, those that are never refunded
	failures  int64         // calls of Withdraw, allowed or not
}

// A history has the moments of one host.
type history struct {
	setting
	moments []moment
}

// successesFrom returns the successes of the moments up to number to, those of
// the window before from included, which is in the host's time.
func (h *history) successesFrom(from time.Duration, to int) (n int64) {
	for i := to; i >= 0 && h.moments[i].host > from-h.window; i-- {
		n += h.moments[i].successes
	}
	return n
}

// net returns the left side of the law.
func (m moment) net() int64 { return m.charges - m.refunds }

// requireWithin looks at every interval that begins and ends with a charge, and
// at some time before it. A longer one with the same charges is allowed more.
func (h *history) requireWithin(t *testing.T, before time.Duration, count func(moment) int64) {
	t.Helper()
	window := int64(h.window)
	for i, first := range h.moments {
		if first.charges == 0 {
			continue
		}
		var net, helped int64
		for j := i - 1; j >= 0 && h.moments[j].at > first.at-before; j-- {
			helped += h.moments[j].helped
		}
		successes := h.successesFrom(first.host-before, i-1)
		for _, last := range h.moments[i:] {
			successes += last.successes
			helped += last.helped
			net += count(last)
			length := int64(before+last.at-first.at) + 1 // exact to a nanosecond
			most := h.num*successes*window + h.burst*h.den*(window+length) + helped*h.den*window
			if net*h.den*window > most {
				require.Failf(t, "too many", "%d for %d successes from %v to %v", net, successes,
					first.at, last.at)
			}
		}
	}
}

// requireOutageLaw looks at every interval without a success that begins with a
// failure.
func (h *history) requireOutageLaw(t *testing.T) {
	t.Helper()
	for i, first := range h.moments {
		if first.failures == 0 {
			continue
		}
		var net int64
		successes := h.successesFrom(first.host, i-1)
		for _, last := range h.moments[i:] {
			if last.successes > 0 {
				break
			}
			if net += last.net(); net*h.den > h.num*successes+h.burst*h.den {
				require.Failf(t, "too many", "%d for %d successes from %v to %v", net, successes,
					first.at, last.at)
			}
		}
	}
}

// Deposits, withdrawals and refunds come from several goroutines at once, and
// Balance is not called, so that deposits are batched.
func TestHostBudgetKeepsTheLaw(t *testing.T) {
	for _, s := range settings {
		t.Run(s.String(), func(t *testing.T) {
			for seed := range uint64(20) {
				for _, latest := range []time.Duration{
					s.window / 5, s.window * 9 / 10, 3 * s.window} {
					synctest.Test(t, func(t *testing.T) {
						h := playRetries(t, s, rand.New(rand.NewPCG(seed, 6)), latest)
						h.requireWithin(t, 0, moment.net)
						h.requireOutageLaw(t)
						// The retries that are never refunded keep the law,
						// too, in an interval that is longer by latest, because
						// a refund may cancel a charge that is younger than its
						// own. A refund after its charge has expired was paid
						// for a Window earlier.
						h.requireWithin(t, latest, func(m moment) int64 { return m.wasted })
					})
				}
			}
		})
	}
}

// playRetries makes random requests. A retry that is refunded is so within at
// most latest.
func playRetries(t *testing.T, s setting, r *rand.Rand, latest time.Duration) *history {
	b, h := s.budget(), &history{setting: s}
	var refunds []openRetries
	begin := time.Now()
	share := r.IntN(100) // of retries that are refunded
	for i := range 150 {
		time.Sleep(s.pause(r))
		now := moment{at: time.Since(begin), host: h.hostTime(time.Since(begin))}
		for range r.IntN(2) * r.IntN(3) * r.IntN(2) {
			n := r.IntN(40)
			now.successes += int64(n)
			go deposit(b, budgetOrigin, n)
		}
		refunds = slices.DeleteFunc(refunds, func(o openRetries) bool {
			age := now.at - h.moments[o.at].at
			switch {
			case age > latest: // it is too late
				h.moments[o.at].wasted += costs(o.after)
				return true
			case age < latest/2 && r.IntN(4) > 0:
				return false
			}
			now.end(b, o, r.IntN(2) == 0)
			return true
		})
		charged := now.withdraw(t, b, r)
		later := slices.DeleteFunc(slices.Clone(charged),
			func(httpretry.AttemptResult) bool { return r.IntN(100) >= share })
		now.wasted = now.charges - costs(later)
		refunds = append(refunds, openRetries{i, later})
		h.moments = append(h.moments, now)
	}
	for _, o := range refunds {
		h.moments[o.at].wasted += costs(o.after)
	}
	return h
}

// openRetries are retries that are to be refunded.
type openRetries struct {
	at    int // the number of the moment that charged for them
	after []httpretry.AttemptResult
}

// costs returns the cost of retries.
func costs(all []httpretry.AttemptResult) (n int64) {
	for _, after := range all {
		n++
		if after.Timeout {
			n++
		}
	}
	return n
}

// hostTime returns the time of the host at a moment that follows. The events of
// a moment have no order. So after a failure, the time goes on for sure only
// from a later moment with a success and without a failure.
func (h *history) hostTime(at time.Duration) time.Duration {
	if len(h.moments) == 0 {
		return 0
	}
	last := h.moments[len(h.moments)-1]
	for i := len(h.moments) - 1; i >= 0; i-- {
		if h.moments[i].failures > 0 {
			return last.host
		}
		if h.moments[i].successes > 0 {
			break
		}
	}
	return last.host + at - last.at
}

// end ends retries, each in a goroutine of its own.
func (m *moment) end(b *httpretry.HostBudget, o openRetries, unsent bool) {
	m.refunds += costs(o.after)
	if !unsent {
		m.successes += int64(len(o.after))
		m.helped += int64(len(o.after))
	}
	for _, after := range o.after {
		if unsent {
			go b.Refund(after)
		} else {
			go retrySucceeds(b, after)
		}
	}
}

// withdraw asks for retries that cost 1 or 2, each in a goroutine of its own,
// and returns what those follow that are allowed. Then all goroutines of the
// moment have ended.
func (m *moment) withdraw(
	t *testing.T, b *httpretry.HostBudget, r *rand.Rand) (charged []httpretry.AttemptResult) {
	var mu sync.Mutex
	for range r.IntN(2) * r.IntN(20) {
		m.failures++
		after := contract.Failure(budgetOrigin)
		after.Timeout = r.IntN(2) == 0
		go func() {
			if b.Withdraw(t.Context(), after) {
				mu.Lock()
				defer mu.Unlock()
				charged = append(charged, after)
			}
		}()
	}
	synctest.Wait()
	m.charges = costs(charged)
	return charged
}
