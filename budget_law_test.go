package httpretry_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

// A setting is a HostBudget in whole numbers.
type setting struct {
	num, den int64 // ratio
	floor    int64
	window   time.Duration
}

func (s setting) String() string {
	return fmt.Sprintf("%d:%d, %d in %v", s.num, s.den, s.floor, s.window)
}

func (s setting) budget() *httpretry.HostBudget {
	floor := int(s.floor)
	if floor == 0 {
		floor = -1
	}
	return &httpretry.HostBudget{Ratio: float64(s.num) / float64(s.den), Floor: floor, Window: s.window}
}

var settings = []setting{
	{1, 10, 3, 10 * time.Second}, // the default
	{1, 10, 0, 10 * time.Second},
	{1, 10, 5, 10 * time.Second},
	{2, 5, 0, time.Second},
	{2, 5, 2, time.Second},
	{1, 3, 1, time.Second},
	{1, 1, 4, 123 * time.Millisecond},
	{5, 2, 1, time.Minute},
	{1, 100, 10, 7 * time.Second},
}

// A model is the budget of one host in the plainest form: a record of all that happened, counted from its beginning
// each time. Tokens are in units of 1/window; one that is less than a nanosecond away is there.
type model struct {
	setting
	successes, retries []time.Duration
	tokens             int64
	refilled           time.Duration
}

// left returns how many retries the ratio and the floor allow at now.
func (m *model) left(now time.Duration) (byRatio, byFloor int64) {
	step := m.window / 10
	recent := func(events []time.Duration) (n int64) {
		for _, at := range events {
			if at/step > now/step-10 {
				n++
			}
		}
		return n
	}
	m.tokens = min(m.tokens+m.floor*int64(min(now-m.refilled, m.window)), m.floor*int64(m.window))
	m.refilled = now
	return max(m.num*recent(m.successes)/m.den-recent(m.retries), 0), (m.tokens + max(m.floor-1, 0)) / int64(m.window)
}

func (m *model) withdraw(now time.Duration) bool {
	byRatio, byFloor := m.left(now)
	if byRatio == 0 && byFloor == 0 {
		return false
	}
	if byRatio == 0 {
		m.tokens -= int64(m.window)
	}
	m.retries = append(m.retries, now)
	return true
}

// requireLaw looks at every interval that begins and ends with a retry: a longer one with the same retries is allowed
// more.
func (m *model) requireLaw(t *testing.T, slack int) {
	t.Helper()
	for i, from := range m.retries {
		first, _ := slices.BinarySearch(m.successes, from-m.window)
		for j, to := range m.retries[i:] {
			last, _ := slices.BinarySearch(m.successes, to+1)
			successes := int64(last - first + slack)
			window, length := int64(m.window), int64(to-from)+1 // exact to a nanosecond
			most := m.num*successes*window + m.floor*m.den*(window+length)
			if int64(j+1)*m.den*window > most {
				require.Failf(t, "too many", "%d retries for %d successes from %v to %v", j+1, successes, from, to)
			}
		}
	}
}

// pause returns a wait of the kind that finds mistakes: none, short, or at the edge of a step or window. The edges are
// two nanoseconds wide, because tokens may come one nanosecond early.
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

// When the time of each success is known, because Balance has asked, the budget is the model and has no slack at all.
func TestHostBudgetEqualsTheModel(t *testing.T) {
	for _, s := range settings {
		t.Run(s.String(), func(t *testing.T) {
			for seed := range uint64(15) {
				synctest.Test(t, func(t *testing.T) {
					r := rand.New(rand.NewPCG(seed, 5))
					b, m := s.budget(), &model{setting: s}
					begin := time.Now()
					require.EqualValues(t, s.floor, withdrawals(t, b, budgetHost, int(s.floor)+1)) // begins the first step
					m.retries, m.tokens = make([]time.Duration, s.floor), 0
					for range 100 {
						time.Sleep(s.pause(r))
						now := time.Since(begin)
						for range r.IntN(2) * r.IntN(30) {
							b.Deposit(budgetHost)
							m.successes = append(m.successes, now)
						}
						byRatio, byFloor := m.left(now)
						require.EqualValues(t, byRatio+byFloor, b.Balance(budgetHost), "at %v", now)
						for range r.IntN(2) * r.IntN(10) {
							require.Equal(t, m.withdraw(now), b.Withdraw(t.Context(), budgetHost), "at %v", now)
						}
					}
					m.requireLaw(t, 0)
				})
			}
		})
	}
}

// Nobody asks here, so that successes are counted whenever their batches are full, from several goroutines.
func TestHostBudgetKeepsTheLaw(t *testing.T) {
	for _, s := range settings {
		t.Run(s.String(), func(t *testing.T) {
			for seed := range uint64(15) {
				synctest.Test(t, func(t *testing.T) {
					r := rand.New(rand.NewPCG(seed, 6))
					b, m := s.budget(), &model{setting: s}
					begin := time.Now()
					for range 60 {
						time.Sleep(s.pause(r))
						now := time.Since(begin)
						for range r.IntN(3) {
							n := r.IntN(40)
							go deposit(b, budgetHost, n)
							for range n {
								m.successes = append(m.successes, now)
							}
						}
						synctest.Wait()
						for range r.IntN(2) * r.IntN(20) {
							if b.Withdraw(t.Context(), budgetHost) {
								m.retries = append(m.retries, now)
							}
						}
					}
					m.requireLaw(t, 63)
				})
			}
		})
	}
}

// A host that can answer 100 requests per tick gets 90, and for a while answers none. When overloaded it works on more
// requests than it finishes, as hosts do. Without a budget the retries keep it overloaded for good; with one, they do
// not.
func TestHostBudgetLetsAnOverloadedHostRecover(t *testing.T) {
	const outageEnds, ends = 100, 400 // ticks
	answered := func(b httpretry.Budget) (last int) {
		var due [3]int // requests of this tick by the number of retries they have had
		for tick := range ends {
			due[0] = 90
			load := due[0] + due[1] + due[2]
			capacity := 100
			if load > capacity {
				capacity = capacity * capacity / load
			}
			if tick < outageEnds {
				capacity = 0
			}
			var next [3]int
			last = 0
			for retries, n := range due {
				ok := min(n, n*capacity/load)
				if load <= capacity {
					ok = n
				}
				deposit(b, budgetHost, ok)
				last += ok
				for range n - ok {
					if retries < 2 && b.Withdraw(t.Context(), budgetHost) {
						next[retries+1]++
					}
				}
			}
			due = next
			time.Sleep(100 * time.Millisecond)
		}
		return last
	}
	synctest.Test(t, func(t *testing.T) {
		require.Less(t, answered(httpretry.Unlimited{}), 60, "still overloaded half a minute later")
		require.Equal(t, 90, answered(&httpretry.HostBudget{}), "recovered")
	})
}
