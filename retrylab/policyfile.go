package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/budgets"
	"github.com/seed421102f4/httpretry/retrylab/internal/spec"
	"github.com/seed421102f4/httpretry/strategies"
)

// policyFile is a policy as JSON. Its names are those of httpretry.Policy and
// httpretry.HostBudget. Fields that are missing keep their values.
type policyFile struct {
	MaxAttempts    *int
	Backoff        *string
	AttemptTimeout *duration
	MaxElapsed     *duration
	Budget         *struct {
		Kind   *string
		Ratio  *float64
		Burst  *int
		Window *duration
		Strict *bool
	}
}

const policyFields = "MaxAttempts, Backoff, AttemptTimeout, MaxElapsed and Budget with Kind, Ratio, Burst, Window and Strict"

// duration is a time.Duration as text.
type duration time.Duration

func (d *duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = duration(parsed)
	return err
}

// policyFlags are the flags of policy.
type policyFlags struct {
	file, backoff, budget string
	attempts, burst       int
	ratio                 float64
	window                time.Duration
	strict                bool
	timeout, maxElapsed   time.Duration

	deadline, latency time.Duration
	processes         int
	rate, capacity    float64
}

func (f *policyFlags) add(o *options) {
	o.StringVar(&f.file, "file", "", "JSON `file` with a policy; other flags replace its values; - is standard input")
	o.StringVar(&f.backoff, "backoff", "DecorrelatedV2", "Backoff, a `strategy` with its fields")
	o.IntVar(&f.attempts, "attempts", 3, "MaxAttempts; 0: the library's default; negative: no limit")
	o.DurationVar(&f.timeout, "timeout", 0, "AttemptTimeout; 0: none")
	o.DurationVar(&f.maxElapsed, "max-elapsed", 0, "MaxElapsed; 0: none")
	o.StringVar(&f.budget, "budget", "default", "`budget`: "+budgets.Names)
	o.Float64Var(&f.ratio, "ratio", 0.1, "Ratio of the budget")
	o.IntVar(&f.burst, "burst", 5, "Burst of the budget; negative: none")
	o.DurationVar(&f.window, "window", 10*time.Second, "Window of the budget")
	o.BoolVar(&f.strict, "strict", false, "Strict of the budget")
	o.DurationVar(&f.deadline, "deadline", 0, "deadline of a request, attempts and waits together; 0: none")
	o.DurationVar(&f.latency, "latency", 50*time.Millisecond, "latency of an attempt")
	o.IntVar(&f.processes, "processes", 100, "processes that send requests")
	o.Float64Var(&f.rate, "rate", 500, "requests per second, of all processes together")
	o.Float64Var(&f.capacity, "capacity", 0, "requests per second that the server can answer; 0: twice the rate")
}

// parse parses the flags, and reads the policy's file for those that are not
// set.
func (f *policyFlags) parse(o *options) error {
	if err := o.parse(); err != nil {
		return err
	}
	if f.file != "" {
		if err := cmp.Or(f.read(f.file), f.check(o)); err != nil {
			return fmt.Errorf("-file %s: %w", f.file, err)
		}
		// Flags that are set replace those in the file.
		if err := o.parse(); err != nil {
			return err
		}
	}
	if f.capacity == 0 {
		f.capacity = 2 * f.rate
	}
	if f.attempts == 0 {
		f.attempts = 3 // the library's default
	}
	return cmp.Or(f.check(o), within("capacity", f.capacity, 0.001, 1e9))
}

func (f *policyFlags) check(o *options) error {
	return cmp.Or(
		o.durations("timeout", "max-elapsed", "deadline", "latency"),
		within("attempts", max(f.attempts, 0), 0, 100), within("processes", f.processes, 1, maxProcesses),
		within("rate", f.rate, 0.001, 1_000_000), checkBudget(f.hostBudget()),
	)
}

func (f *policyFlags) hostBudget() *httpretry.HostBudget {
	return &httpretry.HostBudget{Ratio: f.ratio, Burst: f.burst, Window: f.window, Strict: f.strict}
}

func (f *policyFlags) read(file string) error {
	in := os.Stdin
	if file != "-" {
		var err error
		if in, err = os.Open(file); err != nil {
			return err
		}
		defer in.Close()
	}
	var p *policyFile
	d := json.NewDecoder(in)
	d.DisallowUnknownFields()
	err := d.Decode(&p)
	if _, end := d.Token(); err == nil && (p == nil || end != io.EOF) {
		err = errors.New("not one object")
	}
	if err != nil {
		return fmt.Errorf("%w: want a JSON object with %s; durations are text such as \"2s\"", err, policyFields)
	}
	replace(&f.attempts, p.MaxAttempts)
	replace(&f.backoff, p.Backoff)
	replace(&f.timeout, (*time.Duration)(p.AttemptTimeout))
	replace(&f.maxElapsed, (*time.Duration)(p.MaxElapsed))
	if b := p.Budget; b != nil {
		replace(&f.budget, b.Kind)
		replace(&f.ratio, b.Ratio)
		replace(&f.burst, b.Burst)
		replace(&f.window, (*time.Duration)(b.Window))
		replace(&f.strict, b.Strict)
	}
	return nil
}

// replace sets a value that a file may have.
func replace[T any](value, from *T) {
	if from != nil {
		*value = *from
	}
}

// strategy returns a Backoff whose random numbers follow from seed.
func (f *policyFlags) strategy(random strategies.Rand) (spec.Named, error) {
	s, err := spec.Parse(f.backoff, random, nil)
	if err != nil {
		return s, fmt.Errorf("-backoff: %w", err)
	}
	return s, nil
}
