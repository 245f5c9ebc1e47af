package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
	"github.com/seed421102f4/httpretry/strategies"
)

const allStrategies = "Constant,Exponential,EqualJitter,FullJitter,DecorrelatedV2,Decorrelated,AWSDecorrelated"

// maxWaits is the most waits that plot draws. Each takes 16 bytes, and those of
// one strategy 16 more while its peaks are looked for.
const maxWaits = 100_000_000

func plot(l lab, o *options) (report.Report, error) {
	list := o.String("strategies", allStrategies, "`strategies`, separated by commas, with fields: 'FullJitter Base=1s Max=9s,Constant Wait=1s'")
	base := o.Duration("base", time.Second, "the Base, Median or Wait of strategies that do not set it; 0: the library's default")
	limit := o.Duration("max", 0, "the Max of strategies that do not set it; 0: the library's default")
	failures := o.Int("failures", 400_000, "clients that fail at once")
	retries := o.Int("retries", 5, "retries of each client")
	if err := o.parse(); err != nil {
		return report.Report{}, err
	}
	if err := cmp.Or(
		within("failures", *failures, 1000, 10_000_000), within("retries", *retries, 1, 50),
		o.durations(1, "base", "max"),
	); err != nil {
		return report.Report{}, err
	}
	random := rand.New(rand.NewPCG(o.seed, 0)).Float64
	defaults := map[string]time.Duration{"Base": *base, "Median": *base, "Wait": *base, "Max": *limit}
	all, err := parseEach("strategies", *list, func(text string) (named, error) {
		return parseStrategy("strategies", text, random, defaults)
	})
	if err != nil {
		return report.Report{}, err
	}
	if waits := len(all) * *failures * *retries; waits > maxWaits {
		return report.Report{}, fmt.Errorf("-failures %d -retries %d: want at most %d retries of all %d strategies together",
			*failures, *retries, maxWaits, len(all))
	}
	return plotReport(all, *failures, *retries), nil
}

func plotReport(all []named, failures, retries int) report.Report {
	peaks := report.Table{
		Title:   "Peaks",
		Note:    "A peak is the largest share of the clients that retry within any 10 ms, or 100 ms.",
		Columns: []string{"strategy", "in 10 ms", "in 100 ms", "mean until last retry"},
	}
	waits := report.Table{
		Title:   "Waits before each retry",
		Columns: []string{"strategy", "retry", "mean", "p5", "median", "p95", "p99"},
	}
	samples := make([]*sample, len(all))
	for i, s := range all {
		drawn := takeSample(s.Strategy, failures, retries)
		samples[i] = drawn
		total := time.Duration(0)
		for k := range retries {
			total += drawn.Mean(k)
			waits.Rows = append(waits.Rows, []any{s.Name, k + 1, drawn.Mean(k),
				drawn.Quantile(k, 0.05), drawn.Quantile(k, 0.5), drawn.Quantile(k, 0.95), drawn.Quantile(k, 0.99)})
		}
		largest := drawn.Peaks(10*time.Millisecond, 100*time.Millisecond)
		peaks.Rows = append(peaks.Rows, []any{s.Name, report.Share(largest[0]), report.Share(largest[1]), total})
	}
	return report.Report{
		Title: "How strategies spread retries",
		About: fmt.Sprintf("%d clients fail at the same moment and retry %d times. Their attempts take no time and fail.",
			failures, retries),
		Tables:  []report.Table{peaks, waits},
		Figures: []chart.Figure{arrivalChart(all, samples)},
	}
}

// arrivalChart shows when the clients of each strategy come back, in the time
// of the first retries.
func arrivalChart(all []named, samples []*sample) *chart.Chart {
	end := time.Duration(0)
	for _, s := range samples {
		end = max(end, 3*s.Quantile(min(2, len(s.Waits)-1), 0.5))
	}
	width := time.Duration(chart.NiceStep(float64(max(end/300, 1))))
	c := &chart.Chart{
		Title: "Arrivals of all retries after a failure of all clients at once",
		X:     chart.Axis{Label: "time since the failure (s)", Max: end.Seconds()},
		Y:     chart.Axis{Label: fmt.Sprintf("%% of the clients in each %s (log)", report.Duration(width)), Log: true},
	}
	for i, s := range samples {
		x, y := s.Arriving(width, end)
		most := 100.0
		for j := range y {
			y[j] *= 100
			// Clients may retry more than once in a bin.
			most = max(most, y[j])
		}
		c.Series = append(c.Series, chart.Series{Name: all[i].Name, X: x, Y: y})
		c.Y.Max = max(c.Y.Max, most)
	}
	c.Y.Min = 0.1
	return c
}

// A sample is the retries of many clients.
type sample struct {
	Waits    [][]time.Duration // by retry, in ascending order
	Arrivals [][]time.Duration // after the failure, by retry, of the clients in order
}

func takeSample(s strategies.Strategy, clients, retries int) *sample {
	all := &sample{make([][]time.Duration, retries), make([][]time.Duration, retries)}
	for k := range retries {
		all.Waits[k] = make([]time.Duration, clients)
		all.Arrivals[k] = make([]time.Duration, clients)
	}
	for i := range clients {
		next, at := s.Start(), time.Duration(0)
		for k := range retries {
			wait := max(0, next())
			at += wait
			all.Waits[k][i], all.Arrivals[k][i] = wait, at
		}
	}
	for _, w := range all.Waits {
		slices.Sort(w)
	}
	return all
}

// Quantile returns the wait before a retry that the share p of the waits does
// not exceed.
func (s *sample) Quantile(retry int, p float64) time.Duration {
	w := s.Waits[retry]
	return w[min(int(p*float64(len(w))), len(w)-1)]
}

// Mean returns the mean wait before a retry.
func (s *sample) Mean(retry int) time.Duration {
	sum := 0.0
	for _, w := range s.Waits[retry] {
		sum += float64(w)
	}
	return time.Duration(sum / float64(len(s.Waits[retry])))
}

// Peaks returns, for each width, the largest share of the clients of which a
// retry arrives within an interval of that width. A client counts once, however
// many of its retries do.
func (s *sample) Peaks(widths ...time.Duration) []float64 {
	type arrival struct {
		at     time.Duration
		client int32
	}
	var all []arrival
	for _, arrivals := range s.Arrivals {
		for i, at := range arrivals {
			all = append(all, arrival{at, int32(i)})
		}
	}
	slices.SortFunc(all, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	var peaks []float64
	for _, width := range widths {
		inside := make([]uint8, len(s.Waits[0])) // retries of each client
		first, clients, most := 0, 0, 0
		for _, a := range all {
			for ; a.at-all[first].at >= width; first++ {
				if inside[all[first].client]--; inside[all[first].client] == 0 {
					clients--
				}
			}
			if inside[a.client]++; inside[a.client] == 1 {
				clients++
			}
			most = max(most, clients)
		}
		peaks = append(peaks, float64(most)/float64(len(inside)))
	}
	return peaks
}

// Arriving returns the share of the clients that arrive in each bin of the
// given width up to end, all retries together, at the middles of the bins in
// seconds.
func (s *sample) Arriving(width, end time.Duration) (x, y []float64) {
	for i := range end / width {
		x = append(x, (i*width + width/2).Seconds())
	}
	y = make([]float64, len(x))
	for _, arrivals := range s.Arrivals {
		for _, at := range arrivals {
			if i := int(at / width); i < len(y) {
				y[i] += 1 / float64(len(arrivals))
			}
		}
	}
	return x, y
}
