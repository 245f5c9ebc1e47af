package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
	"github.com/seed421102f4/httpretry/retrylab/internal/spec"
	"github.com/seed421102f4/httpretry/retrylab/internal/spread"
)

const allStrategies = "Constant,Exponential,Clamp,EqualJitter,FullJitter,DecorrelatedV2,Decorrelated,AWSDecorrelated"

// maxWaits is the most waits that plot draws. Each takes 16 bytes.
const maxWaits = 100_000_000

// plot shows how strategies spread retries.
func plot(l lab, o *options) (report.Report, error) {
	list := o.String("strategies", allStrategies, "`strategies`, separated by commas, with fields: 'FullJitter Base=1s Max=9s,Constant Wait=1s'")
	base := o.Duration("base", time.Second, "the Base, Median or Wait of strategies that do not set it; 0: the library's default")
	limit := o.Duration("max", 0, "the Max of strategies that do not set it; 0: the library's default")
	failures := o.Int("failures", 400_000, "clients that fail at once")
	retries := o.Int("retries", 5, "retries of each client")
	if err := o.parse(); err != nil {
		return report.Report{}, err
	}
	if err := within("failures", *failures, 1000, 10_000_000); err != nil {
		return report.Report{}, err
	}
	if err := within("retries", *retries, 1, 50); err != nil {
		return report.Report{}, err
	}
	if err := o.durations("base", "max"); err != nil {
		return report.Report{}, err
	}
	random := rand.New(rand.NewPCG(o.seed, 0)).Float64
	defaults := map[string]time.Duration{"Base": *base, "Median": *base, "Wait": *base, "Max": *limit}
	all, err := parseStrategies(*list, func(text string) (spec.Named, error) { return spec.Parse(text, random, defaults) })
	if err != nil {
		return report.Report{}, err
	}
	if waits := len(all) * *failures * *retries; waits > maxWaits {
		return report.Report{}, fmt.Errorf("-failures %d -retries %d: want at most %d retries of all %d strategies together",
			*failures, *retries, maxWaits, len(all))
	}
	bar := newProgress(l.stderr, len(all))
	defer bar.finish()
	r := plotReport(all, *failures, *retries, bar)
	if !o.isSet("strategies", "base", "max", "retries") {
		r.Notes = append(r.Notes,
			"DecorrelatedV2 has a low peak and no gaps: its retries follow one another without a second wave.",
			"AWSDecorrelated and Decorrelated have a lower peak because they wait longer.")
	}
	return r, nil
}

func plotReport(all []spec.Named, failures, retries int, bar *progress) report.Report {
	peaks := report.Table{
		Title: "Peaks",
		Note:  "A peak is the largest share of the clients that retry within 10 ms, or 100 ms.",
		Columns: []report.Column{
			{Name: "strategy"}, {Name: "in 10 ms", Kind: report.Share}, {Name: "in 100 ms", Kind: report.Share},
			{Name: "mean until last retry", Kind: report.Seconds},
		},
	}
	waits := report.Table{
		Title: "Waits before each retry",
		Columns: []report.Column{
			{Name: "strategy"}, {Name: "retry", Kind: report.Count}, {Name: "mean", Kind: report.Seconds},
			{Name: "p5", Kind: report.Seconds}, {Name: "median", Kind: report.Seconds},
			{Name: "p95", Kind: report.Seconds}, {Name: "p99", Kind: report.Seconds},
		},
	}
	samples := make([]*spread.Sample, len(all))
	for i, s := range all {
		sample := spread.Take(s.Strategy, failures, retries)
		samples[i] = sample
		total := time.Duration(0)
		for k := range retries {
			total += sample.Mean(k)
			waits.Rows = append(waits.Rows, []any{s.Name, k + 1, sample.Mean(k),
				sample.Quantile(k, 0.05), sample.Quantile(k, 0.5), sample.Quantile(k, 0.95), sample.Quantile(k, 0.99)})
		}
		peaks.Rows = append(peaks.Rows, []any{s.Name, sample.Peak(10 * time.Millisecond), sample.Peak(100 * time.Millisecond), total})
		bar.set(i, 1)
	}
	return report.Report{
		Title: "How strategies spread retries",
		About: fmt.Sprintf("%d clients fail at the same moment and retry %d times. Their attempts take no time and fail.",
			failures, retries),
		Tables: []report.Table{peaks, waits},
		Charts: append([]chart.Chart{arrivalChart(all, samples)}, waitCharts(all, samples)...),
		Notes: []string{
			"A strategy without randomness sends all clients back at the same moments, however long it waits.",
			"The lower the peak, the fewer requests a recovering server gets at once.",
		},
	}
}

// arrivalChart shows when the clients of each strategy come back, in the time
// of the first retries.
func arrivalChart(all []spec.Named, samples []*spread.Sample) chart.Chart {
	end := time.Duration(0)
	for _, s := range samples {
		end = max(end, 3*s.Quantile(min(2, len(s.Waits)-1), 0.5))
	}
	width := roundUp(max(end/300, 1))
	c := chart.Chart{
		Title: "Arrivals of all retries after a failure of all clients at once",
		X:     chart.Axis{Label: "time since the failure (s)", Max: end.Seconds()},
		Y:     chart.Axis{Label: fmt.Sprintf("%% of the clients in each %s (log)", report.Duration(width)), Log: true},
	}
	for i, s := range samples {
		x, y := s.Arriving(width, end)
		for j := range y {
			y[j] *= 100
		}
		c.Series = append(c.Series, chart.Series{Name: all[i].Name, X: x, Y: y})
	}
	c.Y.Min, c.Y.Max = 0.1, 100
	return c
}

// roundUp returns 1, 2 or 5 times a power of ten nanoseconds, at least d.
func roundUp(d time.Duration) time.Duration {
	for power := time.Duration(1); ; power *= 10 {
		for _, m := range []time.Duration{1, 2, 5} {
			if m*power >= d {
				return m * power
			}
		}
	}
}

// waitCharts shows the density of each retry's wait.
func waitCharts(all []spec.Named, samples []*spread.Sample) []chart.Chart {
	var charts []chart.Chart
	for i, s := range samples {
		last := len(s.Waits) - 1
		to := s.Quantile(last, 0.999)
		// A wait of 0 has no place on the axis.
		from := max(min(max(s.Quantile(0, 0.01), time.Millisecond), to)/2, 1)
		c := chart.Chart{
			Title: "Waits before each retry: " + all[i].Name,
			X:     chart.Axis{Label: "wait (s, log)", Log: true},
			Y:     chart.Axis{Label: "% of the waits in each eighth of a doubling"},
		}
		for k := range min(last+1, 8) {
			x, y := s.Waiting(k, from, max(2*to, from))
			for j := range y {
				y[j] *= 100
			}
			c.Series = append(c.Series, chart.Series{Name: fmt.Sprintf("retry %d", k+1), X: x, Y: y})
		}
		charts = append(charts, c)
	}
	return charts
}
