package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
	"github.com/seed421102f4/httpretry/retrylab/internal/contention"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
	"github.com/seed421102f4/httpretry/retrylab/internal/spec"
)

const contenders = "none,Exponential Base=10ms,AWSDecorrelated Base=5ms,EqualJitter Base=10ms,DecorrelatedV2 Median=10ms,FullJitter Base=10ms"

// contend shows the optimistic concurrency experiment.
func contend(l lab, o *options) (report.Report, error) {
	list := o.String("strategies", contenders, "`strategies`, separated by commas; none does not wait")
	clients := o.String("clients", "10,25,50,75,100", "`numbers` of clients, separated by commas")
	limit := o.Duration("max", 2*time.Second, "the Max of strategies that do not set it; 0: the library's default")
	hop := o.Duration("hop", 10*time.Millisecond, "mean delay of a message")
	deviation := o.Duration("deviation", 2*time.Millisecond, "standard deviation of that delay")
	runs := o.Int("runs", 50, "runs of each experiment, of which the mean is shown")
	if err := o.parse(); err != nil {
		return report.Report{}, err
	}
	ns, err := parseCounts("clients", *clients, 10_000)
	if err != nil {
		return report.Report{}, err
	}
	if err := within("runs", *runs, 1, 10_000); err != nil {
		return report.Report{}, err
	}
	if err := o.durations("max", "hop", "deviation"); err != nil {
		return report.Report{}, err
	}
	random := rand.New(rand.NewPCG(o.seed, 0))
	all, err := parseStrategies(*list, func(text string) (spec.Named, error) {
		if text == "none" {
			return spec.Named{Name: text}, nil
		}
		s, err := spec.Parse(text, random.Float64, map[string]time.Duration{"Max": *limit})
		if err != nil {
			return s, fmt.Errorf("%w, or none", err)
		}
		return s, nil
	})
	if err != nil {
		return report.Report{}, err
	}
	network := contention.Network{Mean: *hop, Deviation: *deviation}
	return l.contentionReport(all, ns, *runs, network, random), nil
}

func (l lab) contentionReport(all []spec.Named, ns []int, runs int, network contention.Network, random *rand.Rand) report.Report {
	table := report.Table{
		Title:   "Calls and time",
		Note:    "Calls are the writes that the server got, and the time is until the last client was done.",
		Columns: []string{"strategy", "clients", "calls", "time"},
	}
	calls := &chart.Chart{
		Title: "Calls until all clients have changed one row",
		X:     chart.Axis{Label: "clients"}, Y: chart.Axis{Label: "calls"},
	}
	times := &chart.Chart{
		Title: "Time until all clients have changed one row",
		X:     chart.Axis{Label: "clients"}, Y: chart.Axis{Label: "time (s, log)", Log: true},
	}
	for _, s := range all {
		made, took := chart.Series{Name: s.Name, Points: true}, chart.Series{Name: s.Name, Points: true}
		for _, n := range ns {
			var sum contention.Result
			for range runs {
				var r contention.Result
				l.clock(func() { r = contention.Run(n, s.Strategy, network, random) })
				sum.Calls += r.Calls
				sum.Time += r.Time
			}
			mean := contention.Result{Calls: (sum.Calls + runs/2) / runs, Time: sum.Time / time.Duration(runs)}
			table.Rows = append(table.Rows, []any{s.Name, n, mean.Calls, mean.Time})
			made.X, made.Y = append(made.X, float64(n)), append(made.Y, float64(mean.Calls))
			took.X, took.Y = append(took.X, float64(n)), append(took.Y, mean.Time.Seconds())
		}
		calls.Series, times.Series = append(calls.Series, made), append(times.Series, took)
	}
	return report.Report{
		Title: "Clients that change one row",
		About: fmt.Sprintf("Clients read a row and write it, all at once. A write is refused if the row has changed since the read; then the client waits and reads again. "+
			"Each message takes %v ± %v. This is the experiment of the AWS Architecture Blog, \"Exponential Backoff And Jitter\"; each figure is the mean of %d runs.",
			network.Mean, network.Deviation, runs),
		Tables:  []report.Table{table},
		Figures: []chart.Figure{calls, times},
	}
}
