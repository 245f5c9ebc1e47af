package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"slices"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
	"github.com/seed421102f4/httpretry/retrylab/internal/outage"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
	"github.com/seed421102f4/httpretry/strategies"
)

type restartFlags struct {
	policyFlags
	kinds, downs string
	runs         int
	seeded       bool // the waits are not the default, whose random numbers have no seed
	after        time.Duration
	load         float64 // of the host, as a share of its capacity; 0: it has no limit
	scenario     outage.Scenario
}

func simulateRestart(l lab, o *options) (report.Report, error) {
	var f restartFlags
	f.add(o)
	if err := f.parse(o); err != nil {
		return report.Report{}, err
	}
	kinds, err1 := split("kinds", f.kinds, outage.Restarts)
	downs, err2 := split("down", f.downs, "")
	if err := cmp.Or(err1, err2, f.checkRestart(o, kinds)); err != nil {
		return report.Report{}, err
	}
	f.seeded = f.policy.Backoff != nil
	o.Visit(func(set *flag.Flag) { f.seeded = f.seeded || set.Name == "backoff" })
	f.scenario.Rate = f.rate * float64(f.processes)
	f.scenario.Capacity, f.scenario.Latency = f.scenario.Rate/f.load, f.latency
	r := f.report()
	rows := combinations(kinds, downs, []string{noRetries, thePolicy, otherLibrary})
	var c *chart.Chart
	for i, row := range rows {
		s := f.scenario
		s.Fault, s.Seed = row[0], o.seed
		down, err := parseDown(row[1])
		if err != nil {
			return r, err
		}
		s.To = s.From + down
		s.Length = s.To + f.after
		results, err := l.restart(f, s, row[2])
		if err != nil {
			return r, err
		}
		if i%(len(rows)/len(kinds)) == 0 {
			r.Tables = append(r.Tables, report.Table{
				Title:   "Restarts: " + s.Fault,
				Columns: []string{"down", "client", "begun", "failed", "worst", "sends", "lost", "back", "latest"},
			})
		}
		if row[2] == noRetries {
			c = &chart.Chart{
				Title: fmt.Sprintf("Attempts: %s for %s", s.Fault, row[1]),
				X:     chart.Axis{Label: "time (s)", Min: 0, Max: s.Length.Seconds()},
				Y:     chart.Axis{Label: "attempts per second"},
				Bands: []chart.Band{{Name: "restart", From: s.From.Seconds(), To: s.To.Seconds()}},
			}
			r.Figures = append(r.Figures, c)
		}
		table := &r.Tables[len(r.Tables)-1]
		table.Rows = append(table.Rows, append([]any{row[1], row[2]}, restartFigures(f, s, results)...))
		c.Series = append(c.Series, meanAttempts(s, row[2], results))
	}
	r.Tables[0].Note = "Begun is the requests that began in the restart; failed, how many of them failed, and worst, in one run; sends, the attempts per request in the restart; lost, all requests that failed, in seconds of traffic; back, the median time after the restart until requests succeed as before it, and latest, that of one run. go-retryablehttp has as many attempts, its waits of 1s, 2s, 4s and so on, and no budget."
	return r, nil
}

// These are the clients of each restart.
const (
	noRetries    = "no retries"
	thePolicy    = "the policy"
	otherLibrary = "go-retryablehttp"
)

func parseDown(text string) (time.Duration, error) {
	down, err := time.ParseDuration(text)
	if err != nil || down < outage.Bucket || down > time.Hour || down%outage.Bucket != 0 {
		return 0, fmt.Errorf("-down %q: want multiples of %v up to 1h, separated by commas", text, outage.Bucket)
	}
	return down, nil
}

func (f *restartFlags) add(o *options) {
	s := &f.scenario
	f.addPolicy(o)
	o.StringVar(&f.kinds, "kinds", "503", "`kinds` of failure, separated by commas: "+outage.Restarts)
	o.StringVar(&f.downs, "down", "1s,3s", "`lengths` of the restart, separated by commas")
	o.DurationVar(&s.From, "up", time.Minute, "time from the start of the processes until the restart; 0: they start before their host")
	o.DurationVar(&f.after, "after", 30*time.Second, "time that is simulated after the restart")
	o.IntVar(&s.Replicas, "replicas", 1, "replicas of the host, each of which gets a random share of the attempts")
	o.IntVar(&s.Restarting, "restarting", 1, "replicas that restart, all at once")
	o.Float64Var(&f.load, "load", 0, "load of the host before the restart, as a share of its capacity; 0: it is never too slow")
	o.DurationVar(&s.Cold, "cold", 0, "replicas have a tenth of their capacity after the restart, and all of it after this time")
	o.IntVar(&f.processes, "processes", 1, "processes that send requests")
	o.Float64Var(&f.rate, "rate", 20, "requests per second of each process")
	o.IntVar(&f.runs, "runs", 10, "runs of each row")
}

func (f *restartFlags) checkRestart(o *options, kinds []string) error {
	s := f.scenario
	if slices.Contains(kinds, "timeout") && f.timeout == 0 && f.deadline == 0 {
		return errors.New("-kinds timeout: want -timeout or -deadline, because nothing else ends an attempt")
	}
	if s.Cold > 0 && f.load == 0 {
		return fmt.Errorf("-cold %v: want -load, too", s.Cold)
	}
	return cmp.Or(
		o.durations(outage.Bucket, "up", "after"), o.durations(1, "cold"), within("load", f.load, 0, 10), within("runs", f.runs, 1, 10_000),
		within("processes", f.processes, 1, maxProcesses),
		within("replicas", s.Replicas, 1, 10_000), within("restarting", s.Restarting, 1, s.Replicas),
	)
}

func (f *restartFlags) report() report.Report {
	s := f.scenario
	r := report.Report{
		Title: "A host that restarts",
		About: fmt.Sprintf("%d processes with a RetryTransport each have sent %s requests a second each for %v when %d of %d replicas of their host restart. The policy has up to %d attempts and %s. The figures are means of %d runs.",
			f.processes, report.Show(f.rate), s.From, s.Restarting, s.Replicas, f.attempts, f.budgetText(), f.runs),
	}
	if f.load > 0 {
		r.About += fmt.Sprintf(" The load before is %s of the capacity. The host goes on with attempts that have timed out.", report.Show(report.Share(f.load)))
	}
	if f.endless() {
		r.About += " A request that has not ended with the simulation counts as failed."
	}
	if !f.seeded {
		r.Notes = []string{"The random numbers of the default waits have no seed, so figures differ between runs. They are repeatable with -backoff."}
	}
	return r
}

func (l lab) restart(f restartFlags, s outage.Scenario, client string) ([]*outage.Result, error) {
	results := make([]*outage.Result, f.runs)
	err := l.parallel(f.runs, func(i int) error {
		s := s
		s.Seed += uint64(i)
		c, err := f.clientNamed(client, s.Seed)
		if err == nil {
			results[i], err = s.Run(c)
		}
		return err
	})
	return results, err
}

func (f *restartFlags) clientNamed(name string, seed uint64) (outage.Client, error) {
	once := *f
	switch name {
	case noRetries:
		once.attempts = 1
	case otherLibrary:
		once.maxElapsed = 0
		return once.clientOf(httpretry.Policy{Backoff: strategies.Exponential{Base: time.Second}}, "unlimited", seed, false)
	}
	return once.clientOf(f.policy, f.budget, seed, f.seeded)
}

func meanAttempts(s outage.Scenario, client string, results []*outage.Result) chart.Series {
	sum := make([]int, s.Length/outage.Bucket)
	for _, r := range results {
		for i, n := range r.Attempts {
			sum[i] += n
		}
	}
	c := perSecond(client, sum, s.Length)
	for i := range c.Y {
		c.Y[i] /= float64(len(results))
	}
	return c
}

func restartFigures(f restartFlags, s outage.Scenario, results []*outage.Result) []any {
	var begun, failed, worst, lost int
	var sends float64
	var back []time.Duration
	for _, r := range results {
		n, ok := r.Total(s.From, s.To)
		begun, failed, worst = begun+n, failed+n-ok, max(worst, n-ok)
		if n > 0 {
			sends += r.Load(s.From, s.To) * float64(n)
		}
		n, ok = r.Total(0, s.Length)
		lost += n - ok
		after, recovered := r.Recovered()
		if !recovered {
			after = f.after
		}
		back = append(back, after)
	}
	slices.Sort(back)
	shown := func(d time.Duration) time.Duration {
		if d == f.after {
			return report.Never
		}
		return d
	}
	n := float64(len(results))
	return []any{
		float64(begun) / n, float64(failed) / n, worst, sends / float64(begun),
		time.Duration(float64(lost) / n / f.rate / float64(f.processes) * float64(time.Second)),
		shown(back[len(back)/2]), shown(back[len(back)-1]),
	}
}
