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
	Origin        string     `json:"origin"`
	Key           string     `json:"key"`
	Balance       *int       `json:"balance"`
	Successes     int        `json:"successes"`
	FailedRetries int        `json:"failedRetries"`
	CooldownUntil *time.Time `json:"cooldownUntil"`
	Waiting       int        `json:"waiting"`
}

func renderJSON(now time.Time, origins []httpretry.OriginStatus) ([]byte, error) {
	r := report{Time: now, Origins: make([]origin, len(origins))}
	for i, s := range origins {
		r.Origins[i] = origin{
			Origin: s.Origin, Key: s.Key, Successes: s.Successes,
			FailedRetries: s.FailedRetries, Waiting: s.Waiting,
		}
		if s.Balance >= 0 {
			r.Origins[i].Balance = &s.Balance
		}
		if coolsDown(s) {
			until := s.CooldownUntil.UTC()
			r.Origins[i].CooldownUntil = &until
		}
	}
	body, err := json.MarshalIndent(r, "", "  ")
	return append(body, '\n'), err
}
