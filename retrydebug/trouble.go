package retrydebug

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed421102f4/httpretry"
)

// trouble is the worst problem of an origin. Lower values are worse.
type trouble int

const (
	coolingDown trouble = iota
	outOfRetries
	waiting
	failing
	noTrouble
	troubles // the number of values
)

// String returns the text on the page.
func (t trouble) String() string {
	return [troubles]string{
		"cooling down", "out of retries", "waiting", "failing", "ok",
	}[t]
}

// Class returns the class in the style.
func (t trouble) Class() string {
	return [troubles]string{"cooling", "empty", "waiting", "failing", "ok"}[t]
}

// recent is how long an attempt that failed makes an origin failing. Its failed
// retries do not show when it failed, because they count until it succeeds.
const recent = time.Minute

func troubleOf(s *httpretry.OriginStatus, now time.Time) trouble {
	switch {
	case coolsDown(s):
		return coolingDown
	case isOutOfRetries(s):
		return outOfRetries
	case s.Waiting > 0:
		return waiting
	case isFailing(s, now):
		return failing
	default:
		return noTrouble
	}
}

func coolsDown(s *httpretry.OriginStatus) bool { return !s.CooldownUntil.IsZero() }

func isOutOfRetries(s *httpretry.OriginStatus) bool {
	return slices.ContainsFunc(s.Budgets, func(b httpretry.BudgetStatus) bool {
		return b.BalanceKnown && b.Balance <= 0
	})
}

func isFailing(s *httpretry.OriginStatus, now time.Time) bool {
	return !s.LastFailureAt.IsZero() && now.Sub(s.LastFailureAt) < recent
}

// failedRetries returns the sum of all budgets.
func failedRetries(s *httpretry.OriginStatus) (sum int) {
	for _, b := range s.Budgets {
		sum += b.FailedRetries
	}
	return sum
}

// sortByTrouble sorts the origins of each transport, and then the transports,
// in the orders of the package documentation.
func sortByTrouble(all []transport, now time.Time) {
	for _, t := range all {
		slices.SortStableFunc(t.origins, func(a, b httpretry.OriginStatus) int {
			return byTrouble(&a, &b, now)
		})
	}
	slices.SortStableFunc(all, func(a, b transport) int {
		return cmp.Or(cmp.Compare(a.trouble(now), b.trouble(now)), cmp.Compare(a.name, b.name))
	})
}

// trouble returns that of the first of its origins, which are sorted.
func (t *transport) trouble(now time.Time) trouble {
	if len(t.origins) == 0 {
		return noTrouble
	}
	return troubleOf(&t.origins[0], now)
}

// byTrouble compares two origins. Its order is also that of their troubles.
func byTrouble(a, b *httpretry.OriginStatus, now time.Time) int {
	return cmp.Or(
		trueFirst(coolsDown(a), coolsDown(b)),
		trueFirst(isOutOfRetries(a), isOutOfRetries(b)),
		cmp.Compare(b.Waiting, a.Waiting),
		trueFirst(isFailing(a, now), isFailing(b, now)),
		cmp.Compare(failedRetries(b), failedRetries(a)),
		b.LastFailureAt.Compare(a.LastFailureAt),
		cmp.Compare(a.Origin, b.Origin),
	)
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}
