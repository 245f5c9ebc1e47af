package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
	"github.com/seed421102f4/httpretry/retrylab/internal/layers"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
	"github.com/seed421102f4/httpretry/retrylab/internal/spec"
	"github.com/seed421102f4/httpretry/strategies"
)

func simulateLayers(l lab, o *options) (report.Report, error) {
	var s layers.Scenario
	failures := o.String("failures", "random,replica,down", "`kinds` of failure, separated by commas: "+layers.Failures)
	strategy := o.String("strategy", "DecorrelatedV2", "`strategy` of all services")
	o.IntVar(&s.Services, "services", 3, "services that call one another, in front of a server")
	o.IntVar(&s.Attempts, "attempts", 3, "MaxAttempts of each service")
	o.IntVar(&s.Users, "users", 3000, "requests of users")
	o.Float64Var(&s.Rate, "rate", 5, "requests of users per second")
	o.DurationVar(&s.Latency, "latency", 5*time.Millisecond, "of the network, from one service to the next")
	o.Float64Var(&s.Failing, "failing", 0.1, "share of the requests to each service that fail, for -failures=random")
	o.IntVar(&s.Replicas, "replicas", 3, "of the server, one of which is cut off, for -failures=replica")
	if err := o.parse(); err != nil {
		return report.Report{}, err
	}
	kinds, err := split("failures", *failures)
	if err := cmp.Or(
		err, checkKinds(kinds), o.durations("latency"),
		within("services", s.Services, 1, 8), within("attempts", s.Attempts, 1, 10), within("users", s.Users, 1, 1_000_000),
		within("rate", s.Rate, 0.001, 100_000), within("failing", s.Failing, 0, 1), within("replicas", s.Replicas, 1, 1000),
	); err != nil {
		return report.Report{}, err
	}
	if s.Latency%layers.Tick != 0 {
		return report.Report{}, fmt.Errorf("-latency %v: want a multiple of %v", s.Latency, layers.Tick)
	}
	if most := float64(s.Users) * math.Pow(float64(s.Attempts), float64(s.Services)); most > maxCalls {
		return report.Report{}, fmt.Errorf("-users %d -attempts %d -services %d: want at most %d calls, users times attempts to the power of services",
			s.Users, s.Attempts, s.Services, maxCalls)
	}
	s.Seed = o.seed
	r := layersReport(s)
	for _, kind := range kinds {
		s.Failure = kind
		if err := l.addLayers(&r, s, *strategy); err != nil {
			return r, err
		}
	}
	return r, nil
}

func checkKinds(kinds []string) error {
	for _, kind := range kinds {
		if !slices.Contains(strings.Split(layers.Failures, ", "), kind) {
			return fmt.Errorf("-failures %q: want one of %s", kind, layers.Failures)
		}
	}
	return nil
}

func layersReport(s layers.Scenario) report.Report {
	columns := []string{"failure", "retries"}
	for i := range s.Services {
		columns = append(columns, fmt.Sprint(i+1))
	}
	return report.Report{
		Title: "Retries in a chain of services",
		About: fmt.Sprintf("Users, who do not retry, call the first of %d services, each service calls the next with up to %d attempts, and the last one calls a server. The services run RetryTransports. For random, each service and the server fail %s of their requests; for replica, one of %d replicas of the server refuses connections; for down, the server fails.",
			s.Services, s.Attempts, report.Show(report.Share(s.Failing)), s.Replicas),
		Tables: []report.Table{
			{Title: "What users see", Note: "Without retries, with unlimited ones, with budgets, with Middleware, and with both. The times are until users have an answer, of either kind.", Columns: []string{"failure", "retries", "success", "p50", "p99"}},
			{Title: "Calls for each user's request", Note: "The numbers are those of the services.",
				Columns: append(columns, "server")},
		},
	}
}

const maxCalls = 10_000_000

func (l lab) addLayers(r *report.Report, s layers.Scenario, strategy string) error {
	c := &chart.Chart{
		Title: "Calls for each user's request: " + s.Failure,
		X:     chart.Axis{Label: "service, and the server at the end"}, Y: chart.Axis{Label: "calls"},
	}
	unlimited := func() httpretry.Budget { return httpretry.Unlimited{} }
	for _, v := range [...]struct {
		name       string
		attempts   int
		budget     func() httpretry.Budget
		middleware bool
	}{
		{"none", 1, nil, false}, {"multiplied", s.Attempts, unlimited, false}, {"budgeted", s.Attempts, nil, false},
		{"Middleware", s.Attempts, unlimited, true}, {"both", s.Attempts, nil, true},
	} {
		backoff, err := spec.Parse(strategy, strategies.Seeded(s.Seed), nil)
		if err != nil {
			return fmt.Errorf("-strategy: %w", err)
		}
		client := layers.Client{Policy: httpretry.Policy{Backoff: backoff.Strategy}, Budget: v.budget, Middleware: v.middleware}
		s.Attempts = v.attempts
		var result *layers.Result
		l.clock(func() { result, err = s.Run(client) })
		if err != nil {
			return err
		}
		r.Tables[0].Rows = append(r.Tables[0].Rows, []any{s.Failure, v.name, report.Share(result.Succeeded), result.Quantile(0.5), result.Quantile(0.99)})
		calls, line := []any{s.Failure, v.name}, chart.Series{Name: v.name, Points: true}
		for i, n := range result.Calls {
			calls = append(calls, n)
			line.X, line.Y = append(line.X, float64(i+1)), append(line.Y, n)
		}
		r.Tables[1].Rows = append(r.Tables[1].Rows, calls)
		// Without retries, calls are one for each request, at most.
		if v.name != "none" {
			c.Series = append(c.Series, line)
		}
	}
	r.Figures = append(r.Figures, c)
	return nil
}
