package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
	"github.com/seed421102f4/httpretry/retrylab/internal/outage"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
	"github.com/seed421102f4/httpretry/strategies"
)

func checkPolicy(l lab, o *options) (report.Report, error) {
	var f policyFlags
	f.add(o)
	if err := f.parse(o); err != nil {
		return report.Report{}, err
	}
	backoff, err := parseStrategy("backoff", f.backoff, rand.New(rand.NewPCG(o.seed, 40)).Float64, nil)
	if err != nil {
		return report.Report{}, err
	}
	if err := checkEndless(f.attempts, backoff); err != nil {
		return report.Report{}, err
	}
	failures, figures, err := l.underFailures(f, o.seed)
	if err != nil {
		return report.Report{}, err
	}
	drawn := f.drawWaits(backoff)
	ends, err := l.ends(&f, o.seed)
	if err != nil {
		return report.Report{}, err
	}
	r := report.Report{
		Title: "What a policy does",
		About: fmt.Sprintf("%s with waits of %s and %s, in %d processes that send %s requests a second to a server that can answer %s.",
			attemptsText(f.attempts), backoff.Name, f.budgetText(), f.processes, report.Show(f.rate), report.Show(f.capacity)),
		Tables:  append([]report.Table{failures, ends.table()}, f.budgetTables()...),
		Figures: figures,
		Notes:   f.warnings(drawn, ends),
	}
	if f.attempts != 1 {
		r.Tables = append(r.Tables, waitTable(drawn))
	}
	if len(r.Notes) == 0 {
		r.Notes = []string{"No warnings."}
	}
	return r, nil
}

func (f *policyFlags) drawWaits(backoff named) *sample {
	retries := max(f.attempts-1, 1)
	if f.attempts < 0 {
		retries = shownRetries
	}
	return takeSample(backoff.Strategy, 20_000, retries)
}

const shownRetries = 15

func attemptsText(attempts int) string {
	if attempts < 0 {
		return "Any number of attempts"
	}
	return fmt.Sprintf("Up to %d attempts", attempts)
}

func (f *policyFlags) budgetText() string {
	text := fmt.Sprintf("the budget %q", f.budget)
	var fields []string
	if f.ratio != defaultRatio {
		fields = append(fields, fmt.Sprintf("Ratio %v", f.ratio))
	}
	if f.burst != defaultBurst {
		fields = append(fields, fmt.Sprintf("Burst %d", f.burst))
	}
	if f.window != defaultWindow {
		fields = append(fields, fmt.Sprintf("Window %v", f.window))
	}
	if f.strict && f.budget != "strict" {
		fields = append(fields, "Strict")
	}
	if _, ok := f.usesHostBudget(); !ok || fields == nil {
		return text
	}
	if f.budget == "default" {
		text = "a HostBudget"
	}
	return text + " with " + strings.Join(fields, ", ")
}

// endless reports whether nothing but the budget ends a request that never
// succeeds.
func (f *policyFlags) endless() bool { return f.attempts < 0 && f.maxElapsed == 0 && f.deadline == 0 }

func (l lab) underFailures(f policyFlags, seed uint64) (report.Table, []chart.Figure, error) {
	t := report.Table{
		Title:   "If a share of the attempts fails at random",
		Note:    "Without budget is the success if no budget refuses a retry; load, the attempts per request; retries/s, those of all processes on average; peak/s, the most attempts in a second. The server is never too slow here.",
		Columns: []string{"failing", "success", "without budget", "load", "retries/s", "peak/s"},
	}
	success := &chart.Chart{
		Title: "Success and load by the share of attempts that fail",
		X:     chart.Axis{Label: "attempts that fail (%)"}, Y: chart.Axis{Label: "% of the requests"},
		Series: []chart.Series{{Name: "success", Points: true}, {Name: "success without a budget", Points: true}, {Name: "retries", Points: true}},
	}
	s := outage.Scenario{Rate: f.rate, Capacity: 1e9, Fault: "errors", Latency: f.latency, Seed: seed}
	// Long enough for a window, and for about 20,000 requests.
	s.Length = min(max(time.Duration(20_000/f.rate)*time.Second, 30*time.Second), 10*time.Minute)
	s.From, s.To = s.Length, s.Length
	if f.endless() {
		t.Note += fmt.Sprintf(" A request that has not ended after %v counts as failed.", s.Length)
	}
	shares := []float64{0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 1}
	unlimited := f
	unlimited.budget = "unlimited"
	results := make([]*outage.Result, 2*len(shares))
	if err := l.parallel(len(results), func(i int) error {
		s, f := s, f
		s.Failing = shares[i/2]
		if i%2 == 1 {
			f = unlimited
		}
		client, err := f.clientOf(f.policy, f.budget, s.Seed, true)
		if err == nil {
			results[i], err = s.Run(client)
		}
		return err
	}); err != nil {
		return t, nil, err
	}
	for i, p := range shares {
		r, all := results[2*i], results[2*i+1]
		got, without, load := r.Success(), all.Success(), r.MeanAttempts()
		t.Rows = append(t.Rows, []any{report.Share(p), report.Share(got), report.Share(without), load, (load - 1) * f.rate, r.Busiest()})
		for j, y := range []float64{got, without, load - 1} {
			c := &success.Series[j]
			c.X, c.Y = append(c.X, 100*p), append(c.Y, 100*y)
		}
	}
	return t, []chart.Figure{success}, nil
}

// clientOf returns processes with the policy p and the values of the flags, except
// its Backoff if it is not seeded.
func (f *policyFlags) clientOf(p httpretry.Policy, budget string, seed uint64, seeded bool) (c outage.Client, err error) {
	p.MaxAttempts, p.AttemptTimeout, p.MaxElapsed = f.attempts, f.timeout, f.maxElapsed
	if seeded {
		backoff, err := parseStrategy("backoff", f.backoff, strategies.Seeded(seed), nil)
		if err != nil {
			return c, err
		}
		p.Backoff = backoff.Strategy
	}
	return outage.Client{Processes: f.processes, Deadline: f.deadline, Policy: withBudgets(p, budget, f.hostBudget())}, nil
}

// ends are how requests end that never succeed, with attempts that fail after
// the usual latency, and with attempts that get no answer. Nil means never.
type ends struct {
	fast, slow *outage.Result
}

// ends runs requests that never succeed, with a budget that refuses nothing.
func (l lab) ends(f *policyFlags, seed uint64) (e ends, err error) {
	if f.endless() {
		return e, nil
	}
	client, err := f.clientOf(f.policy, "unlimited", seed, true)
	if err != nil {
		return e, err
	}
	run := func(capacity, failing float64) (r *outage.Result) {
		s := outage.Scenario{
			Rate: 500, Length: time.Second, Capacity: capacity, Latency: f.latency,
			Fault: "errors", From: time.Second, To: time.Second, Failing: failing, Seed: seed,
		}
		l.clock(func() { r, err = s.Run(client) })
		return r
	}
	e.fast = run(1e9, 1)
	if f.timeout > 0 || f.deadline > 0 {
		e.slow = run(1e-9, 0) // an answer takes 31 years
	}
	return e, err
}

func (e ends) table() report.Table {
	t := report.Table{
		Title:   "Time until a request gives up that never succeeds",
		Note:    "The budget allows all its retries here; if it refuses one, the request ends sooner.",
		Columns: []string{"attempts", "p50", "p99", "worst", "made"},
	}
	names := []string{"fail after the latency", "get no answer"}
	for i, r := range []*outage.Result{e.fast, e.slow} {
		row := []any{names[i], report.Never, report.Never, report.Never, math.NaN()}
		if r != nil {
			for i, p := range []float64{0.5, 0.99, 1} {
				row[i+1] = r.ToFailure.Quantile(p)
			}
			row[4] = r.MeanAttempts()
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func waitTable(s *sample) report.Table {
	t := report.Table{
		Title:   "Waits before each retry",
		Columns: []string{"retry", "mean", "p5", "median", "p95"},
	}
	for k := range min(len(s.Waits), shownRetries) {
		t.Rows = append(t.Rows, []any{k + 1, s.Mean(k), s.Quantile(k, 0.05), s.Quantile(k, 0.5), s.Quantile(k, 0.95)})
	}
	return t
}
