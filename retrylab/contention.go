package main

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
	"github.com/seed421102f4/httpretry/retrylab/internal/virtual"
	"github.com/seed421102f4/httpretry/strategies"
)

const contenders = "none,Exponential Base=10ms,AWSDecorrelated Base=5ms,EqualJitter Base=10ms,DecorrelatedV2 Median=10ms,FullJitter Base=10ms"

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
	if err := cmp.Or(err, within("runs", *runs, 1, 10_000), o.durations(1, "max", "hop", "deviation")); err != nil {
		return report.Report{}, err
	}
	random := rand.New(rand.NewPCG(o.seed, 0))
	all, err := parseEach("strategies", *list, func(text string) (named, error) {
		if text == "none" {
			return named{Name: text}, nil
		}
		s, err := parseStrategy("strategies", text, random.Float64, map[string]time.Duration{"Max": *limit})
		if err != nil {
			return s, fmt.Errorf("%w, or none", err)
		}
		return s, nil
	})
	if err != nil {
		return report.Report{}, err
	}
	return l.contentionReport(all, ns, *runs, *hop, *deviation, random), nil
}

func (l lab) contentionReport(all []named, ns []int, runs int, mean, deviation time.Duration, random *rand.Rand) report.Report {
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
			var sum, calls int
			var total time.Duration
			for range runs {
				var d time.Duration
				l.clock(func() { calls, d = changeRow(n, s.Strategy, mean, deviation, random) })
				sum, total = sum+calls, total+d
			}
			calls, total = (sum+runs/2)/runs, total/time.Duration(runs)
			table.Rows = append(table.Rows, []any{s.Name, n, calls, total})
			made.X, made.Y = append(made.X, float64(n)), append(made.Y, float64(calls))
			took.X, took.Y = append(took.X, float64(n)), append(took.Y, total.Seconds())
		}
		calls.Series, times.Series = append(calls.Series, made), append(times.Series, took)
	}
	return report.Report{
		Title: "Clients that change one row",
		About: fmt.Sprintf("Clients read a row and write it, all at once. A write is refused if the row has changed since the read; then the client waits and reads again. "+
			"Each message takes %v ± %v. This is the experiment of the AWS Architecture Blog, \"Exponential Backoff And Jitter\"; each figure is the mean of %d runs.",
			mean, deviation, runs),
		Tables:  []report.Table{table},
		Figures: []chart.Figure{calls, times},
	}
}

// contentionTick is that of all times. The nanoseconds below it are the number of the
// client: see virtual.Ticking.
const contentionTick = 10 * time.Microsecond

// changeRow lets clients read the row and write it, all at once. A write that does
// not follow the latest change is refused, and the client reads again after
// the wait of its strategy. A nil strategy does not wait. It must be called in
// a bubble of package virtual.
func changeRow(clients int, s strategies.Strategy, mean, deviation time.Duration, random *rand.Rand) (calls int, took time.Duration) {
	var mu sync.Mutex // guards the following and random
	version := 0
	// A negative delay counts as its absolute value.
	delay := func() time.Duration {
		return time.Duration(math.Abs(random.NormFloat64()*float64(deviation) + float64(mean)))
	}
	// hop lets a message travel, and the receiver act on it.
	hop := func(act func()) {
		mu.Lock()
		d := delay()
		mu.Unlock()
		time.Sleep(d.Truncate(contentionTick))
		mu.Lock()
		defer mu.Unlock()
		act()
	}
	begin := time.Now()
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			time.Sleep(time.Duration(i))
			wait := func() time.Duration { return 0 }
			if s != nil {
				wait = virtual.Ticking{Strategy: s, Tick: contentionTick}.Start()
			}
			for read, accepted := 0, false; !accepted; {
				hop(func() { read = version })
				hop(func() {})
				hop(func() {
					calls++
					// Otherwise, another client has changed the row since this one read it.
					if accepted = read == version; accepted {
						version++
						took = time.Since(begin) + delay()
					}
				})
				if !accepted {
					hop(func() {})
					mu.Lock()
					d := wait()
					mu.Unlock()
					time.Sleep(d)
				}
			}
		})
	}
	all.Wait()
	return calls, took
}
