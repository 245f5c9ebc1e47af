package httpretry_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
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
	{1, 10, 5, 10 * time.Second}, // the default
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
// edge of a step or window. The edges are two nanoseconds wide, because tokens
// may come one nanosecond early.
func (s setting) pause(r *rand.Rand) time.Duration {
	switch r.IntN(12) {
	case 0:
		return s.window + time.Duration(2*r.IntN(3)-2)
	case 1:
		return s.window/10 + time.Duration(2*r.IntN(3)-2)
	case 2:
		return time.Duration(r.Int64N(int64(2 * s.window)))
	case 3, 4, 5:
		return time.Duration(r.Int64N(int64(s.window / 20)))
	}
	return 0
}

// A model is the budget of one host in the plainest form: a record of all that
// happened, which is counted from its beginning each time.
type model struct {
	setting
	successes []time.Duration
	charges   []modelCharge // that were not refunded

	tokens  int64         // in units of 1/window
	now     time.Duration // when tokens was right
	failing bool
}

type modelCharge struct {
	at        time.Duration
	fromBurst bool
}

// recent reports whether something of a certain time counts at now.
func (m *model) recent(at, now time.Duration) bool {
	step := m.window / 10
	return at/step > now/step-10
}

// left returns how many retries the ratio and the burst allow at now. A token
// that is less than a nanosecond away is there.
func (m *model) left(now time.Duration) (byRatio, byBurst int64) {
	if !m.failing {
		m.tokens = min(m.tokens+m.burst*int64(min(now-m.now, m.window)), m.burst*int64(m.window))
	}
	m.now = now
	var successes, charges int64
	for _, at := range m.successes {
		if m.recent(at, now) {
			successes++
		}
	}
	for _, c := range m.charges {
		if m.recent(c.at, now) {
			charges++
		}
	}
	return max(m.num*successes/m.den-charges, 0), (m.tokens + max(m.burst-1, 0)) / int64(m.window)
}

func (m *model) withdraw(now time.Duration) bool {
	byRatio, byBurst := m.left(now)
	m.failing = true
	if byRatio == 0 && byBurst == 0 {
		return false
	}
	if byRatio == 0 {
		m.tokens -= int64(m.window)
	}
	m.charges = append(m.charges, modelCharge{now, byRatio == 0})
	return true
}

func (m *model) deposit(now time.Duration, charged bool) {
	m.left(now)
	m.failing = false
	m.successes = append(m.successes, now)
	if charged {
		m.refund(now)
		m.addToken()
	}
}

func (m *model) addToken() {
	m.tokens = min(m.tokens+int64(m.window), m.burst*int64(m.window))
}

// refund cancels a charge of the latest step, one that took a token if there
// is one.
func (m *model) refund(now time.Duration) {
	m.left(now)
	step := m.window / 10
	found := -1
	for i, c := range m.charges {
		switch {
		case !m.recent(c.at, now):
		case found < 0 || c.at/step > m.charges[found].at/step || c.fromBurst:
			found = i
		}
	}
	if found < 0 {
		return
	}
	if m.charges[found].fromBurst {
		m.addToken()
	}
	m.charges = append(m.charges[:found:found], m.charges[found+1:]...)
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
	b, m := s.budget(), &model{setting: s, tokens: s.burst * int64(s.window)}
	begin := time.Now()
	b.Refund(contract.Failure(budgetOrigin))
	failure := contract.Failure(budgetOrigin)
	require.Equal(t, m.withdraw(0), b.Withdraw(t.Context(), failure)) // begins the first step
	for range 150 {
		time.Sleep(s.pause(r))
		now := time.Since(begin)
		byRatio, byBurst := m.left(now)
		require.EqualValues(t, byRatio+byBurst, contract.Balance(b, budgetOrigin), "at %v", now)
		switch r.IntN(3) {
		case 0:
			for range r.IntN(30) {
				charged := r.IntN(5) == 0
				contract.Succeed(b, budgetOrigin, charged)
				m.deposit(now, charged)
			}
		case 1:
			for range r.IntN(10) {
				require.Equal(t, m.withdraw(now), b.Withdraw(t.Context(), failure), "at %v",
					now)
			}
		case 2:
			for range r.IntN(6) {
				b.Refund(contract.Failure(budgetOrigin))
				m.refund(now)
			}
		}
		byRatio, byBurst = m.left(now)
		require.EqualValues(t, byRatio+byBurst, contract.Balance(b, budgetOrigin), "at %v", now)
	}
}

// A moment has the events at one time, in any order.
type moment struct {
	at                 time.Duration
	successes, charges int64
	refunds            int64 // of retries that were not sent
	helped             int64 // retries that succeeded: successes that are refunded, too
	wasted             int64 // of the charges, those that are never refunded
	failures           int64 // calls of Withdraw, allowed or not
}

// A history has the moments of one host.
type history struct {
	setting
	moments []moment
}

// successesFrom returns the successes of the moments up to number to, those of
// the window before from included.
func (h *history) successesFrom(from time.Duration, to int) (n int64) {
	for i := to; i >= 0 && h.moments[i].at > from-h.window; i-- {
		n += h.moments[i].successes
	}
	return n
}

// net returns the left side of the law.
func (m moment) net() int64 { return m.charges - m.refunds - m.helped }

// requireLaw looks at every interval that begins and ends with a charge. A
// longer one with the same charges is allowed more.
func (h *history) requireLaw(t *testing.T) {
	t.Helper()
	h.requireWithin(t, 0, moment.net)
}

// requireWithin looks at every interval, and at some time before it.
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
		successes := h.successesFrom(first.at-before, i-1)
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
		successes := h.successesFrom(first.at, i-1)
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
						h.requireLaw(t)
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
	type open struct{ at, charges int } // to be refunded; at is a moment's number
	var refunds []open
	begin := time.Now()
	share := r.IntN(100) // of retries that are refunded
	for i := range 150 {
		time.Sleep(s.pause(r))
		now := moment{at: time.Since(begin)}

		for range r.IntN(2) * r.IntN(3) * r.IntN(2) {
			n := r.IntN(40)
			now.successes += int64(n)
			go deposit(b, budgetOrigin, n)
		}
		refunds = slices.DeleteFunc(refunds, func(o open) bool {
			age := now.at - h.moments[o.at].at
			switch {
			case age > latest: // it is too late
				h.moments[o.at].wasted += int64(o.charges)
				return true
			case age < latest/2 && r.IntN(4) > 0:
				return false
			}
			if r.IntN(2) == 0 {
				now.refunds += int64(o.charges)
				for range o.charges {
					go b.Refund(contract.Failure(budgetOrigin))
				}
				return true
			}
			now.helped += int64(o.charges)
			now.successes += int64(o.charges)
			for range o.charges {
				go contract.Succeed(b, budgetOrigin, true)
			}
			return true
		})
		var charges atomic.Int64
		for range r.IntN(2) * r.IntN(20) {
			now.failures++
			go func() {
				if b.Withdraw(t.Context(), contract.Failure(budgetOrigin)) {
					charges.Add(1)
				}
			}()
		}
		synctest.Wait()
		now.charges = charges.Load()
		failed := 0
		for range now.charges {
			if r.IntN(100) >= share {
				failed++
			}
		}
		now.wasted = int64(failed)
		refunds = append(refunds, open{i, int(now.charges) - failed})
		h.moments = append(h.moments, now)
	}
	for _, o := range refunds {
		h.moments[o.at].wasted += int64(o.charges)
	}
	return h
}
