// Package giveup measures how long requests take that never succeed.
package giveup

import (
	"math"
	"slices"
	"time"

	"github.com/seed421102f4/httpretry/strategies"
)

// A Policy has the fields that determine when a request gives up, if no budget
// does.
type Policy struct {
	Backoff    strategies.Strategy
	Attempts   int           // at most; negative: any number, if one of the others is set
	MaxElapsed time.Duration // 0: none
	Deadline   time.Duration // 0: none
}

// A Result is the times until requests give up, in ascending order, and their
// mean number of attempts.
type Result struct {
	Times    []time.Duration
	Attempts float64
}

// Quantile returns the time that the share p of the requests does not exceed.
func (r Result) Quantile(p float64) time.Duration {
	return r.Times[min(int(p*float64(len(r.Times))), len(r.Times)-1)]
}

// Run lets requests fail whose attempts take the given time. An attempt that
// the deadline cuts off ends the request.
func (p Policy) Run(requests int, attempt time.Duration) Result {
	var r Result
	for range requests {
		at, attempts := p.request(attempt)
		r.Times = append(r.Times, at)
		r.Attempts += float64(attempts) / float64(requests)
	}
	slices.Sort(r.Times)
	return r
}

func (p Policy) request(attempt time.Duration) (at time.Duration, attempts int) {
	last, deadline := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	if p.Deadline > 0 {
		deadline = p.Deadline
		// At the deadline itself, there is no time for an attempt.
		last = deadline - 1
	}
	if p.MaxElapsed > 0 {
		last = min(last, p.MaxElapsed)
	}
	next := p.Backoff.Start()
	for {
		attempts++
		if attempt >= deadline-at {
			return deadline, attempts
		}
		at += attempt
		if attempts == p.Attempts {
			return at, attempts
		}
		wait := max(next(), 0)
		if wait > last-at {
			return at, attempts
		}
		at += wait
	}
}
