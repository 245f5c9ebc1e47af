package main

import (
	"fmt"
	"math"
	"time"

	"github.com/seed421102f4/httpretry/retrylab/internal/outage"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
)

// usesHostBudget reports whether the budget has a Ratio and a Burst, and how
// many of it there are.
func (f *policyFlags) usesHostBudget() (count int, ok bool) {
	switch f.budget {
	case "default", "strict":
		return f.processes, true
	case "shared":
		return 1, true
	}
	return 0, false
}

func (f *policyFlags) budgetTables() []report.Table {
	n, ok := f.usesHostBudget()
	if !ok {
		return nil
	}
	all, succeeding := float64(n), f.failedRetries(n)
	outage := f.burstSize() + succeeding*f.window.Seconds()
	return []report.Table{{
		Title:   "What the budget allows",
		Note:    "The lines are Ratio, and Burst + Ratio x Window. A retry after a timeout costs two. Each retry that succeeds pays for one that failed, except with Strict.",
		Columns: []string{"retries", "per budget", "all together"},
		Rows: [][]any{
			{"failed retries per second, while the server works", succeeding, succeeding * all},
			{"in an outage, however long it lasts", outage, outage * all},
			{"in an outage, if attempts time out", outage / 2, outage / 2 * all},
		},
	}}
}

// failedRetries returns how many retries may fail each second, in each of n
// budgets, while all requests succeed.
func (f *policyFlags) failedRetries(n int) float64 {
	return f.ratio * f.rate / float64(n)
}

func (f *policyFlags) burstSize() float64 { return float64(max(f.burst, 0)) }

func (f *policyFlags) warnings(drawn *sample, e ends) []string {
	var all []string
	warn := func(format string, args ...any) { all = append(all, "Warning: "+fmt.Sprintf(format, args...)) }
	if f.attempts == 1 {
		warn("with MaxAttempts 1 there are no retries.")
		return all
	}
	if _, ok := f.usesHostBudget(); ok && f.ratio > 1 {
		warn("a Ratio of %v allows %v failed retries for each success: 20 %% is 0.2.", f.ratio, f.ratio)
	}
	f.warnAboutRequests(warn, drawn, e)
	switch {
	case !f.endless():
	case f.budget == "unlimited":
		warn("without a budget, MaxAttempts and MaxElapsed, only a deadline ends a request that never succeeds.")
	default:
		warn("without MaxAttempts, MaxElapsed and a deadline, only the budget ends a request that never succeeds.")
	}
	f.warnAboutLoad(warn)
	return all
}

func (f *policyFlags) warnAboutRequests(warn func(string, ...any), drawn *sample, e ends) {
	f.warnAboutWaits(warn, drawn)
	if held := made(e.fast); held < float64(f.attempts)-0.5 {
		warn("of %d attempts, the deadline or MaxElapsed holds %.1f on average if attempts fail after %v.", f.attempts, held, f.latency)
	}
	switch {
	case f.timeout > 0 && f.timeout <= f.latency:
		warn("AttemptTimeout is %v and the latency is %v: each attempt times out.", f.timeout, f.latency)
	case f.timeout == 0 && f.deadline == 0:
		warn("an attempt without an answer never ends: set AttemptTimeout, or a deadline.")
	case f.timeout > 0 && made(e.slow) < float64(f.attempts)-0.5:
		warn("of %d attempts, the deadline or MaxElapsed holds %.1f on average if attempts time out.", f.attempts, made(e.slow))
	case f.timeout == 0:
		warn("without an AttemptTimeout, one attempt without an answer takes all the time until the deadline.")
	}
}

func made(r *outage.Result) float64 {
	if r == nil {
		return math.Inf(1)
	}
	return r.MeanAttempts()
}

func (f *policyFlags) warnAboutWaits(warn func(string, ...any), drawn *sample) {
	const width = 10 * time.Millisecond
	peaks := drawn.Peaks(1, width)
	switch same, near := peaks[0], peaks[1]; {
	// Short waits are near one another, however random they are.
	case near <= 0.05 || drawn.Quantile(0, 0.99) <= 2*width:
	case same > 0.95:
		warn("%s of the clients that fail at once retry at the same moment: use a strategy that is random.", report.Show(report.Share(same)))
	case same > 0.05:
		warn("%s of the clients that fail at once retry at the same moment: their waits are cut off at a bound.", report.Show(report.Share(same)))
	case drawn.Quantile(0, 0.95)-drawn.Quantile(0, 0.05) < drawn.Mean(0)/3:
		warn("%s of the clients that fail at once retry within the same %v: use a strategy that is more random.", report.Show(report.Share(near)), width)
	}
	var longest, total time.Duration
	for k := range drawn.Waits {
		longest, total = max(longest, drawn.Mean(k)), total+drawn.Mean(k)
	}
	last := len(drawn.Waits) - 1
	first, most := drawn.Mean(0), drawn.Mean(last)
	// One retry without a wait may be meant.
	if last >= 1 && longest < width {
		text := "no time in all"
		if total > 0 {
			text = report.Duration(total) + " on average in all"
		}
		warn("the %d waits take %s: use longer waits, so that a host can recover.", len(drawn.Waits), text)
	}
	if last >= 2 && most < first*3/2 {
		warn("waits do not grow: %s on average before the first retry, and %s before the last. Max is too near Base or Median.",
			report.Duration(first), report.Duration(most))
	}
	if last >= 1 && drawn.Quantile(last, 0.99) == drawn.Quantile(last, 0.9) && drawn.Quantile(last, 0.9) > drawn.Quantile(last, 0.1) {
		warn("many of the last waits are exactly %s: Max is too near Base, or is applied after the randomness.", report.Duration(drawn.Quantile(last, 0.99)))
	}
}

func (f *policyFlags) warnAboutLoad(warn func(string, ...any)) {
	n, ok := f.usesHostBudget()
	if allowed := f.failedRetries(n) * f.window.Seconds(); ok && f.burstSize() == 0 && allowed < 1 {
		warn("without a Burst, each budget allows %s failed retries per Window, which is less than one: use a Burst, or share the budget.",
			report.Show(allowed))
	}
	spare := f.capacity - f.rate
	if spare <= 0 {
		warn("the server has no spare capacity for retries: it gets %s requests a second and can answer %s.", report.Show(f.rate), report.Show(f.capacity))
		return
	}
	if !ok {
		switch {
		case f.budget != "unlimited":
		case f.attempts < 0:
			warn("without a budget and MaxAttempts, the load grows as long as an outage lasts: the server may never recover.")
		case f.rate*float64(f.attempts) > f.capacity:
			warn("without a budget, an outage multiplies the load by %d, and the server can answer %s times its load: it may never recover.",
				f.attempts, report.Show(f.capacity/f.rate))
		}
		return
	}
	// A retry after a timeout costs two of a Burst.
	retries := f.burstSize() / 2 * float64(n)
	if backlog := time.Duration(retries / spare * float64(time.Second)); backlog > time.Minute {
		warn("if attempts time out, %d budgets with a Burst of %g allow %s retries however few requests they send, and the server needs %s for these in addition to its load: use a smaller Burst, or share the budget.",
			n, f.burstSize(), report.Show(retries), report.Duration(backlog))
	}
}
