package retrydebug

import (
	"encoding/json"
	"time"

	"github.com/seed421102f4/httpretry"
)

// report is the JSON. The package documentation describes it.
type report struct {
	Time    time.Time `json:"time"`
	Origins []origin  `json:"origins"`
}

type origin struct {
	Origin             string     `json:"origin"`
	Waiting            int        `json:"waiting"`
	CooldownUntil      *time.Time `json:"cooldownUntil"`
	LastFailure        string     `json:"lastFailure"`
	LastFailureAt      *time.Time `json:"lastFailureAt"`
	FailedWithoutRetry int        `json:"failedWithoutRetry"`
	Policies           []policy   `json:"policies"`
	MorePolicies       int        `json:"morePolicies"`
}

type policy struct {
	Key           string `json:"key"`
	Balance       *int   `json:"balance"`
	Successes     int    `json:"successes"`
	FailedRetries int    `json:"failedRetries"`
}

func renderJSON(now time.Time, origins []httpretry.OriginStatus) ([]byte, error) {
	r := report{Time: now, Origins: make([]origin, len(origins))}
	for i, s := range origins {
		r.Origins[i] = origin{
			Origin: s.Origin, Waiting: s.Waiting, CooldownUntil: orNull(s.CooldownUntil),
			LastFailure: s.LastFailure, LastFailureAt: orNull(s.LastFailureAt),
			FailedWithoutRetry: s.FailedWithoutRetry, MorePolicies: s.MorePolicies,
			Policies: make([]policy, len(s.Policies)),
		}
		for j, p := range s.Policies {
			r.Origins[i].Policies[j] = policy{
				Key: p.Key, Successes: p.Successes, FailedRetries: p.FailedRetries}
			if p.BalanceKnown {
				r.Origins[i].Policies[j].Balance = &p.Balance
			}
		}
	}
	body, err := json.MarshalIndent(r, "", "  ")
	return append(body, '\n'), err
}

// orNull returns t in UTC, or nil if t is zero.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
