package retrydebug

import (
	"cmp"
	"slices"

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

func troubleOf(s httpretry.OriginStatus) trouble {
	switch {
	case coolsDown(s):
		return coolingDown
	case s.Balance == 0:
		return outOfRetries
	case s.Waiting > 0:
		return waiting
	case s.FailedRetries > 0:
		return failing
	default:
		return noTrouble
	}
}

func coolsDown(s httpretry.OriginStatus) bool { return !s.CooldownUntil.IsZero() }

// sortByTrouble sorts origins in the order of the package documentation. For
// any two of them, that is also the order of their troubles.
func sortByTrouble(origins []httpretry.OriginStatus) {
	slices.SortFunc(origins, func(a, b httpretry.OriginStatus) int {
		return cmp.Or(
			trueFirst(coolsDown(a), coolsDown(b)),
			trueFirst(a.Balance == 0, b.Balance == 0),
			cmp.Compare(b.Waiting, a.Waiting),
			cmp.Compare(b.FailedRetries, a.FailedRetries),
			cmp.Compare(a.Origin, b.Origin),
			cmp.Compare(a.Key, b.Key),
		)
	})
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
