package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

const helpText = `Quickstart shows what httpretry does with requests that fail.

Usage:
  quickstart                    a demo with its own server, about six seconds
  quickstart -url URL [flags]   the same client with your server

Flags that go with -url:
  -url URL          where the requests go, http:// or https://
  -n N              how many requests, 1 to 100000 (default 10)
  -rate R           how many of them start per second, up to 1000 (default 5)
  -method M         their method (default GET)
  -attempts N       most attempts of one request, 1 to 100 (default 3)
  -timeout D        longest time for one attempt (default 10s; 0: no limit)
  -budget B         retries that the client may make: default; unlimited; or
                    failed retries per success, 0.001 to 1000
  -strategy NAME    how waits grow: constant, linear, exponential, full, equal,
                    decorrelated, aws, v2 (default v2)
  -base D           the strategy's first or typical wait (default: its own)
  -max D            the strategy's longest wait (default: its own)

Durations are written like 250ms, 2s or 1m30s. On a terminal the output has
colors, unless NO_COLOR is set.

Ctrl-C cancels the requests and prints the summary.

Exit status:
  0     every request succeeded; in the demo, every scenario did what it says
  1     a request, or a scenario, did not
  2     the flags are wrong
  130   interrupted by Ctrl-C (SIGINT) or SIGTERM
`

type options struct {
	url      string // "" means the demo
	n        int
	rate     float64
	method   string
	attempts int
	timeout  time.Duration
	budget   httpretry.Budget // nil means the default
	backoff  strategies.Strategy
}

// parseFlags returns the options, [flag.ErrHelp] for -h, or an error that names
// the flag, its value and the allowed values.
func parseFlags(args []string) (options, error) {
	opts := options{n: 10, rate: 5, method: http.MethodGet, attempts: 3, timeout: 10 * time.Second}
	var budget, strategy string
	var base, longest time.Duration

	fs := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are returned, and run prints them once
	const duration = "a duration such as 250ms or 2s, not negative"
	define(fs, "url", &opts.url, parseString, validURL, "an absolute http:// or https:// URL")
	define(fs, "n", &opts.n, strconv.Atoi, within(1, 100_000), "a whole number from 1 to 100000")
	define(fs, "rate", &opts.rate, parseFloat, within(0.001, 1000), "a number from 0.001 to 1000")
	define(fs, "method", &opts.method, parseString, validMethod, "an HTTP method such as GET")
	define(fs, "attempts", &opts.attempts, strconv.Atoi, within(1, 100),
		"a whole number from 1 to 100")
	define(fs, "timeout", &opts.timeout, time.ParseDuration, validTimeout,
		"a duration of at least 1ms, or 0 for no limit")
	define(fs, "budget", &budget, parseString, validBudget,
		"default, unlimited or a number from 0.001 to 1000")
	define(fs, "strategy", &strategy, parseString, validStrategy,
		"one of "+strings.Join(strategyNames(), ", "))
	define(fs, "base", &base, time.ParseDuration, notNegative, duration)
	define(fs, "max", &longest, time.ParseDuration, notNegative, duration)
	if err := fs.Parse(args); err != nil {
		return opts, err
	}

	opts.budget = newBudget(budget)
	var err error
	opts.backoff, err = newStrategy(strategy, base, longest)
	fs.Visit(func(f *flag.Flag) {
		if opts.url == "" && err == nil {
			err = fmt.Errorf("-%s %s: want a -url as well, because the demo has no flags",
				f.Name, f.Value)
		}
	})
	if fs.NArg() > 0 {
		err = fmt.Errorf("%q: want flags only", fs.Arg(0))
	}
	return opts, err
}

// checked is a [flag.Value] whose errors say what is allowed.
type checked[T any] struct {
	target *T
	text   string
	parse  func(string) (T, error)
	valid  func(T) bool
	want   string
}

func (c *checked[T]) String() string { return c.text }

func (c *checked[T]) Set(text string) error {
	v, err := c.parse(text)
	if err != nil || !c.valid(v) {
		return errors.New("want " + c.want)
	}
	*c.target, c.text = v, text
	return nil
}

// define adds a checked flag.
func define[T any](fs *flag.FlagSet, name string, target *T,
	parse func(string) (T, error), valid func(T) bool, want string,
) {
	fs.Var(&checked[T]{target: target, parse: parse, valid: valid, want: want}, name, want)
}

// newBudget returns the budget for a value that validBudget accepts.
func newBudget(text string) httpretry.Budget {
	switch text {
	case "", "default":
		return nil
	case "unlimited":
		return httpretry.Unlimited{}
	}
	ratio, _ := parseFloat(text)
	return &httpretry.HostBudget{Ratio: ratio}
}

func validBudget(text string) bool {
	if text == "default" || text == "unlimited" {
		return true
	}
	ratio, err := parseFloat(text)
	return err == nil && within(0.001, 1000.0)(ratio)
}

func parseString(text string) (string, error) { return text, nil }

func parseFloat(text string) (float64, error) { return strconv.ParseFloat(text, 64) }

func within[N int | float64](low, high N) func(N) bool {
	return func(n N) bool { return low <= n && n <= high }
}

func notNegative(d time.Duration) bool { return d >= 0 }

func validTimeout(d time.Duration) bool { return d == 0 || d >= time.Millisecond }

func validURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
}

func validMethod(method string) bool {
	_, err := http.NewRequest(method, "http://example.test/", nil)
	return method != "" && err == nil
}

func validStrategy(name string) bool { return slices.Contains(strategyNames(), name) }

func strategyNames() []string {
	return []string{
		"constant", "linear", "exponential", "full", "equal", "decorrelated", "aws", "v2"}
}

// newStrategy returns the strategy of that name. For a zero base or longest,
// the strategy has a default.
func newStrategy(name string, base, longest time.Duration) (strategies.Strategy, error) {
	var s strategies.Strategy
	switch name {
	case "constant":
		if longest != 0 {
			return nil, fmt.Errorf(
				"-max %v: -strategy constant waits -base every time and has no -max", longest)
		}
		s = strategies.Constant{Wait: base}
	case "linear":
		s = strategies.Linear{Base: base, Max: longest}
	case "exponential":
		s = strategies.Exponential{Base: base, Max: longest}
	case "full":
		s = strategies.FullJitter{Base: base, Max: longest}
	case "equal":
		s = strategies.EqualJitter{Base: base, Max: longest}
	case "decorrelated":
		s = strategies.Decorrelated{Base: base, Max: longest}
	case "aws":
		s = strategies.AWSDecorrelated{Base: base, Max: longest}
	default:
		s = strategies.DecorrelatedV2{Median: base, Max: longest}
	}
	// New would check this as well, but its errors name the fields of its
	// Config. Here they are flags.
	if err := strategies.Validate(s); err != nil {
		return nil, fmt.Errorf("-base %v -max %v: %w", base, longest, err)
	}
	return s, nil
}
