package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policyfile"
	"github.com/seed421102f4/httpretry/strategies"
)

type policyFlags struct {
	file, key           string
	backoff, budget     string
	attempts, burst     int
	ratio               float64
	window              time.Duration
	strict              bool
	timeout, maxElapsed time.Duration

	deadline, latency time.Duration
	processes         int
	rate, capacity    float64

	policy httpretry.Policy // of the file
}

// These are the defaults of the library, which TestDefaults compares.
const (
	defaultAttempts = 3
	defaultRatio    = 0.2
	defaultBurst    = 5
	defaultWindow   = 30 * time.Second
)

func (f *policyFlags) add(o *options) {
	f.addPolicy(o)
	o.IntVar(&f.processes, "processes", 100, "processes that send requests")
	o.Float64Var(&f.rate, "rate", 500, "requests per second, of all processes together")
	o.Float64Var(&f.capacity, "capacity", 0, "requests per second that the server can answer; 0: twice the rate")
}

func (f *policyFlags) addPolicy(o *options) {
	o.StringVar(&f.file, "file", "", "`file` of package policyfile; other flags replace its values; - is standard input")
	o.StringVar(&f.key, "policy", "", "`key` of a policy in the file; none: its default")
	o.StringVar(&f.backoff, "backoff", "DecorrelatedV2", "Backoff, a `strategy` with its fields")
	o.IntVar(&f.attempts, "attempts", defaultAttempts, "MaxAttempts; 0: the library's default; negative: no limit")
	o.DurationVar(&f.timeout, "timeout", 0, "AttemptTimeout; 0: none")
	o.DurationVar(&f.maxElapsed, "max-elapsed", 0, "MaxElapsed; 0: none")
	o.StringVar(&f.budget, "budget", "default", "`budget`: "+budgetNames)
	o.Float64Var(&f.ratio, "ratio", defaultRatio, "Ratio of the budget")
	o.IntVar(&f.burst, "burst", defaultBurst, "Burst of the budget; negative: none")
	o.DurationVar(&f.window, "window", defaultWindow, "Window of the budget")
	o.BoolVar(&f.strict, "strict", false, "Strict of the budget")
	o.DurationVar(&f.deadline, "deadline", 0, "deadline of a request, attempts and waits together; 0: none")
	o.DurationVar(&f.latency, "latency", 50*time.Millisecond, "latency of an attempt")
}

// parse parses the flags, and reads the policy's file for those that are not
// set.
func (f *policyFlags) parse(o *options) error {
	if err := o.parse(); err != nil {
		return err
	}
	if f.file != "" {
		if err := f.read(); err != nil {
			return err
		}
		if err := f.check(o); err != nil {
			return fmt.Errorf("-file %s: %w", f.file, err)
		}
		// Flags that are set replace those in the file.
		if err := o.parse(); err != nil {
			return err
		}
	}
	if f.file == "" && f.key != "" {
		return fmt.Errorf("-policy %q: want -file, too", f.key)
	}
	if f.capacity == 0 {
		f.capacity = 2 * f.rate
	}
	f.setDefaults()
	return cmp.Or(f.check(o), within("capacity", f.capacity, 0.001, 1e9))
}

func (f *policyFlags) setDefaults() {
	f.attempts, f.burst = cmp.Or(f.attempts, defaultAttempts), cmp.Or(f.burst, defaultBurst)
	f.ratio, f.window = cmp.Or(f.ratio, defaultRatio), cmp.Or(f.window, defaultWindow)
}

func (f *policyFlags) check(o *options) error {
	return cmp.Or(
		oneOf("budget", f.budget, budgetNames), o.durations(1, "timeout", "max-elapsed", "deadline", "latency"),
		within("attempts", max(f.attempts, 0), 0, 100), within("processes", f.processes, 1, maxProcesses),
		within("rate", f.rate, 0.001, 1_000_000), checkBudget(f.hostBudget()),
	)
}

func (f *policyFlags) hostBudget() *httpretry.HostBudget {
	return &httpretry.HostBudget{Ratio: f.ratio, Burst: f.burst, Window: f.window, Strict: f.strict}
}

func (f *policyFlags) read() error {
	file, err := readPolicies(f.file)
	if err != nil {
		return fmt.Errorf("-file: %w", err)
	}
	p, ok := file.Policy(), true
	if f.key != "" {
		p, ok = file.Policies()[f.key]
	}
	if !ok {
		keys := slices.Sorted(maps.Keys(file.Policies()))
		return fmt.Errorf("-policy %q: want one of %q", f.key, keys)
	}
	return f.use(p)
}

func (f *policyFlags) use(p httpretry.Policy) error {
	f.policy = p
	f.attempts, f.timeout, f.maxElapsed = p.MaxAttempts, p.AttemptTimeout, p.MaxElapsed
	f.backoff = "DecorrelatedV2"
	if p.Backoff != nil {
		// Presets have a Backoff with a text.
		var err error
		if f.backoff, err = strategies.Format(p.Backoff); err != nil {
			return fmt.Errorf("the backoff: %w", err)
		}
	}
	f.budget = "default"
	switch b := p.Budget.(type) {
	case httpretry.Unlimited:
		f.budget = "unlimited"
	case *httpretry.HostBudget:
		f.ratio, f.burst, f.window, f.strict = b.Ratio, b.Burst, b.Window, b.Strict
	}
	return nil
}

// readPolicies reads a file of package policyfile. Each line of an error begins
// with the name of the file.
func readPolicies(name string) (*policyfile.File, error) {
	in := os.Stdin
	if name != "-" {
		var err error
		if in, err = os.Open(name); err != nil {
			return nil, err
		}
		defer in.Close()
	}
	text, err := io.ReadAll(io.LimitReader(in, policyfile.MaxSize+1))
	if err != nil {
		return nil, err
	}
	file, err := policyfile.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s:%s", name, strings.ReplaceAll(err.Error(), "\n", "\n"+name+":"))
	}
	return file, nil
}
