package main

import (
	"cmp"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
	"github.com/seed421102f4/httpretry/retrylab/internal/outage"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
	"github.com/seed421102f4/httpretry/strategies"
)

type outageFlags struct {
	processes, budgets, strategies, cooldowns string
	incident                                  string
	attempts, burst                           int
	ratio                                     float64
	timeout, deadline                         time.Duration
	scenario                                  outage.Scenario
}

func simulateOutage(l lab, o *options) (report.Report, error) {
	var f outageFlags
	s := &f.scenario
	o.StringVar(&f.incident, "incident", "", "`name` of an incident whose flags are the defaults: "+incidentNames())
	o.StringVar(&f.processes, "processes", "100", "`numbers` of processes that make the load, separated by commas")
	o.StringVar(&f.budgets, "budgets", "none,default,strict,shared,aws,grpc,unlimited", "`budgets`, separated by commas; none makes no retries")
	o.StringVar(&f.strategies, "strategies", "DecorrelatedV2", "`strategies`, separated by commas; default: those of a RetryTransport without a Backoff, which have no seed")
	o.StringVar(&f.cooldowns, "cooldowns", "send", "`cool-downs`, separated by commas: send, wait or fail")
	o.IntVar(&f.attempts, "attempts", defaultAttempts, "MaxAttempts; 0: the library's default; negative: no limit")
	o.Float64Var(&f.ratio, "ratio", defaultRatio, "Ratio of the library's budgets")
	o.IntVar(&f.burst, "burst", defaultBurst, "Burst of the library's budgets; negative: none")
	o.DurationVar(&f.timeout, "timeout", 2*time.Second, "AttemptTimeout; 0: none")
	o.DurationVar(&f.deadline, "deadline", 0, "deadline of a request, attempts and waits together; 0: none")
	o.Float64Var(&s.Rate, "rate", 80, "requests per second, of all processes together")
	o.Float64Var(&s.Capacity, "capacity", 100, "requests per second that the server can answer")
	o.DurationVar(&s.Latency, "latency", 0, "latency of the network")
	o.StringVar(&s.Fault, "fault", "stall", "`kind` of failure: "+outage.Faults)
	o.DurationVar(&s.From, "from", 20*time.Second, "when the failure begins")
	o.DurationVar(&s.To, "to", 30*time.Second, "when the failure ends")
	o.DurationVar(&s.Length, "length", 150*time.Second, "length of the simulation")
	o.DurationVar(&s.RetryAfter, "retry-after", 0, "Retry-After of the failing server's answers; 0: none")
	o.Float64Var(&s.Left, "left", 0.5, "share of the capacity that is left, for -fault=slow")
	o.Float64Var(&s.Failing, "failing", 0, "share of all other attempts that fail at random")
	if err := o.parse(); err != nil {
		return report.Report{}, err
	}
	if err := cmp.Or(o.useIncident(f.incident), f.check(o)); err != nil {
		return report.Report{}, err
	}
	s.Seed = o.seed
	f.attempts = cmp.Or(f.attempts, defaultAttempts)
	variants, err := f.variants(o.seed)
	if err != nil {
		return report.Report{}, err
	}
	if err := l.parallel(len(variants), func(i int) (err error) {
		v := variants[i]
		v.result, err = s.Run(v.client)
		return err
	}); err != nil {
		return report.Report{}, err
	}
	return outageReport(f, variants), nil
}

// fleetBudgets are the values of -budgets. A fleet with none makes no retries.
const fleetBudgets = "none, " + budgetNames

const aboutBudgets = "The fleets differ in their budgets: none makes no retries; default is a HostBudget for each process; strict charges retries that succeed, too; shared is one HostBudget for all processes; aws, aws2026 and grpc are those of their SDKs; proxy is one for all processes, as in Envoy and the Gateway API; unlimited refuses nothing."

func (f *outageFlags) check(o *options) error {
	s := f.scenario
	if s.From < 0 || s.To <= s.From || s.Length <= s.To {
		return fmt.Errorf("-from %v -to %v -length %v: want times in this order", s.From, s.To, s.Length)
	}
	if s.RetryAfter > 0 && s.Fault != "errors" && s.Fault != "throttle" {
		return fmt.Errorf("-retry-after %v: want -fault errors or throttle, because nothing else answers in the outage", s.RetryAfter)
	}
	return cmp.Or(
		oneOf("fault", s.Fault, outage.Faults),
		o.durations(1, "timeout", "deadline", "latency", "retry-after"), o.durations(outage.Bucket, "from", "to", "length"),
		within("length", s.Length, time.Second, 24*time.Hour),
		within("rate", s.Rate, 0.001, 10_000_000), within("capacity", s.Capacity, 0.001, 100_000_000),
		within("left", s.Left, 0.001, 1), within("failing", s.Failing, 0, 1),
		within("attempts", max(f.attempts, 0), 0, 1000),
		checkBudget(f.hostBudget()),
	)
}

func (f *outageFlags) hostBudget() *httpretry.HostBudget {
	return &httpretry.HostBudget{Ratio: f.ratio, Burst: f.burst}
}

// ownWaits are the waits of a policy without a Backoff.
const ownWaits = "default"

// A variant is one fleet, and its result.
type variant struct {
	name   string
	kind   string // of its budget
	client outage.Client
	result *outage.Result
}

// maxProcesses is the most processes, of which each has a RetryTransport.
const maxProcesses = 20_000

// variants returns a fleet for each combination of the lists. Its name lists
// the settings that differ.
func (f *outageFlags) variants(seed uint64) ([]*variant, error) {
	counts, err := parseCounts("processes", f.processes, maxProcesses)
	if err != nil {
		return nil, err
	}
	cooldowns, err1 := split("cooldowns", f.cooldowns, "send, wait, fail")
	waits, err2 := split("strategies", f.strategies, "")
	kinds, err3 := split("budgets", f.budgets, fleetBudgets)
	if err := cmp.Or(err1, err2, err3); err != nil {
		return nil, err
	}
	var all []*variant
	for _, c := range combinations(cooldowns, waits, kinds) {
		for _, n := range counts {
			v, err := f.variant(c[0], c[1], c[2], n, seed)
			if err != nil {
				return nil, err
			}
			all = append(all, v)
		}
	}
	return all, nil
}

func combinations(lists ...[]string) [][]string {
	if len(lists) == 0 {
		return [][]string{nil}
	}
	var all [][]string
	for _, part := range lists[0] {
		for _, rest := range combinations(lists[1:]...) {
			all = append(all, append([]string{part}, rest...))
		}
	}
	return all
}

func (f *outageFlags) variant(cooldown, strategy, kind string, processes int, seed uint64) (*variant, error) {
	p := httpretry.Policy{MaxAttempts: f.attempts, AttemptTimeout: f.timeout}
	if strategy != ownWaits {
		s, err := parseStrategy("strategies", strategy, strategies.Seeded(seed), nil)
		if err != nil {
			return nil, fmt.Errorf("%w, or %s", err, ownWaits)
		}
		if err := checkEndless(f.attempts, s); err != nil {
			return nil, err
		}
		p.Backoff, strategy = s.Strategy, s.Name
	}
	p.Cooldown = map[string]httpretry.Cooldown{"wait": httpretry.CooldownWait, "fail": httpretry.CooldownFail}[cooldown]
	budget := kind
	if kind == "none" {
		p.MaxAttempts, budget = 1, "unlimited"
	}
	client := outage.Client{Processes: processes, Deadline: f.deadline, Policy: withBudgets(p, budget, f.hostBudget())}
	return &variant{name: f.name(cooldown, strategy, kind, processes), kind: kind, client: client}, nil
}

// name joins those parts of which there are several.
func (f *outageFlags) name(cooldown, strategy, kind string, processes int) string {
	var parts []string
	for _, of := range [...]struct{ list, part string }{
		{f.processes, fmt.Sprintf("%d procs", processes)}, {f.budgets, kind}, {f.strategies, strategy}, {f.cooldowns, cooldown},
	} {
		if strings.Contains(of.list, ",") {
			parts = append(parts, of.part)
		}
	}
	return cmp.Or(strings.Join(parts, ", "), kind)
}

// parallel calls run for the numbers below n in bubbles of their own, as many at
// once as there are processors.
func (l lab) parallel(n int, run func(i int) error) error {
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			l.clock(func() { errs[i] = run(i) })
		})
	}
	wg.Wait()
	return cmp.Or(errs...)
}

func outageReport(f outageFlags, variants []*variant) report.Report {
	s := f.scenario
	table := report.Table{
		Title:   "What happened",
		Note:    "Success is the share of the requests from the outage on that succeed; load, the attempts per request in the outage; peak, the most attempts in 100 ms; back, the time after the outage until as many requests succeed as before it, which is never if the simulation ends sooner; p50 and p99, the time to success of those requests that succeed.",
		Columns: []string{"fleet", "success", "retries", "load", "peak", "back", "p50", "p99"},
	}
	for _, v := range variants {
		r := v.result
		begun, ok := r.Total(s.From, s.Length)
		back, recovers := r.Recovered()
		if !recovers {
			back = report.Never
		}
		table.Rows = append(table.Rows, []any{v.name, report.Share(float64(ok) / float64(begun)), r.Retries, r.Load(s.From, s.To), r.Peak(), back,
			r.ToSuccess.Quantile(0.5), r.ToSuccess.Quantile(0.99)})
	}
	timeout := "without a timeout"
	if f.timeout > 0 {
		timeout = fmt.Sprintf("each with a timeout of %v", f.timeout)
	}
	r := report.Report{
		Title: "A fleet and a server that fails for a while",
		About: fmt.Sprintf("Processes send %s requests a second to a server that can answer %s. From %v to %v it %s. %s for a request, %s. The server goes on with requests whose clients have given up.",
			report.Show(s.Rate), report.Show(s.Capacity), s.From, s.To, faults()[s.Fault], attemptsText(f.attempts), timeout),
		Tables:  []report.Table{table},
		Figures: outageCharts(s, variants),
		Notes:   outageNotes(s, variants),
	}
	if f.incident != "" {
		r.About = incidents()[f.incident].about + " " + r.About
	}
	if f.attempts < 0 && f.deadline == 0 {
		r.About += fmt.Sprintf(" A request that has not ended after %v counts as failed.", s.Length)
	}
	if strings.Contains(f.budgets, ",") {
		r.About += " " + aboutBudgets
	}
	return r
}

func faults() map[string]string {
	return map[string]string{
		"errors":   "answers 503",
		"slow":     "has a part of its capacity",
		"stall":    "does not answer, and then works off its queue",
		"throttle": "answers 429",
		"refuse":   "refuses connections",
	}
}

func outageNotes(s outage.Scenario, variants []*variant) []string {
	var notes, stuck []string
	var best *variant
	var bestBack time.Duration
	for _, v := range variants {
		back, ok := v.result.Recovered()
		switch {
		case !ok && v.result.AtEnd() > s.Capacity:
			stuck = append(stuck, v.name)
		case ok && v.kind != "none" && (best == nil || back < bestBack):
			best, bestBack = v, back
		}
	}
	if len(stuck) > 0 {
		notes = append(notes, strings.Join(stuck, "; ")+": the retries keep the server overloaded after the cause is gone.")
	}
	if len(stuck) > 0 && best != nil {
		notes = append(notes, fmt.Sprintf("Of the fleets with retries, %s is the first to get back, after %s.", best.name, report.Duration(bestBack)))
	}
	return notes
}

func outageCharts(s outage.Scenario, variants []*variant) []chart.Figure {
	band := []chart.Band{{Name: "outage", From: s.From.Seconds(), To: s.To.Seconds()}}
	time := chart.Axis{Label: "time (s)", Min: 0, Max: s.Length.Seconds()}
	attempts := &chart.Chart{Title: "Attempts that reach the server", X: time, Y: chart.Axis{Label: "attempts per second"}, Bands: band}
	successes := &chart.Chart{Title: "Requests that succeed", X: time, Y: chart.Axis{Label: "successes per second, by their end"}, Bands: band}
	for _, v := range variants {
		attempts.Series = append(attempts.Series, perSecond(v.name, v.result.Attempts, s.Length))
		successes.Series = append(successes.Series, perSecond(v.name, v.result.Successes, s.Length))
	}
	return []chart.Figure{attempts, successes}
}

func perSecond(name string, buckets []int, length time.Duration) chart.Series {
	seconds := int(length / time.Second)
	step := (seconds + 299) / 300
	c := chart.Series{Name: name}
	for from := 0; from+step <= seconds; from += step {
		sum := outage.Sum(buckets, time.Duration(from)*time.Second, time.Duration(from+step)*time.Second)
		c.X = append(c.X, float64(from)+float64(step)/2)
		c.Y = append(c.Y, float64(sum)/float64(step))
	}
	return c
}
