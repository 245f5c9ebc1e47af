package retrydebug

import (
	"encoding/json"
	"time"

	"github.com/seed421102f4/httpretry"
)

// report is the JSON. The package documentation describes it.
type report struct {
	Time       time.Time         `json:"time"`
	Transports []transportReport `json:"transports"`
}

type transportReport struct {
	Name    string         `json:"name"`
	Origins []originReport `json:"origins"`
}

type originReport struct {
	Origin             string         `json:"origin"`
	Waiting            int            `json:"waiting"`
	CooldownUntil      *time.Time     `json:"cooldownUntil"`
	LastFailure        string         `json:"lastFailure"`
	LastFailureAt      *time.Time     `json:"lastFailureAt"`
	FailedWithoutRetry int            `json:"failedWithoutRetry"`
	Budgets            []budgetReport `json:"budgets"`
}

type budgetReport struct {
	Key           string `json:"key"`
	Balance       *int   `json:"balance"`
	Successes     int    `json:"successes"`
	FailedRetries int    `json:"failedRetries"`
}

func renderJSON(now time.Time, transports []transport) ([]byte, error) {
	r := report{Time: now, Transports: make([]transportReport, len(transports))}
	for i, t := range transports {
		origins := make([]originReport, len(t.origins))
		for j := range t.origins {
			origins[j] = reportOf(&t.origins[j])
		}
		r.Transports[i] = transportReport{t.name, origins}
	}
	body, err := json.MarshalIndent(r, "", "  ")
	return append(body, '\n'), err
}

func reportOf(s *httpretry.OriginStatus) originReport {
	budgets := make([]budgetReport, len(s.Budgets))
	for i, b := range s.Budgets {
		budgets[i] = budgetReport{
			Key: b.Key, Successes: b.Successes, FailedRetries: b.FailedRetries}
		if b.BalanceKnown {
			budgets[i].Balance = &b.Balance
		}
	}
	return originReport{
		Origin: s.Origin, Waiting: s.Waiting, CooldownUntil: orNull(s.CooldownUntil),
		LastFailure: s.LastFailure, LastFailureAt: orNull(s.LastFailureAt),
		FailedWithoutRetry: s.FailedWithoutRetry, Budgets: budgets,
	}
}

// orNull returns t in UTC, or nil if t is zero.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
