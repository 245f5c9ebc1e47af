package contract

import (
	"net/http"

	"github.com/seed421102f4/httpretry"
)

// Failure is the result of a first attempt that failed, after which a retry
// costs 1.
func Failure(origin string) httpretry.AttemptResult {
	return httpretry.AttemptResult{Origin: origin, Attempt: 1,
		Status: http.StatusServiceUnavailable, Outcome: httpretry.Transient}
}

// Deposit records a success in b, that of a first attempt, or if charged is
// true that of the retry after a Failure.
func Deposit(b httpretry.Budget, origin string, charged bool) {
	ended := httpretry.AttemptResult{Origin: origin, Attempt: 1, Status: http.StatusOK}
	if !charged {
		b.Record(ended, httpretry.AttemptResult{})
		return
	}
	ended.Attempt, ended.Charged = 2, true
	b.Record(ended, Failure(origin))
}
