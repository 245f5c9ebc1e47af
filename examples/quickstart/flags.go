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

	"github.com/seed421102f4/httpretry/strategies"
)

const helpText = `Quickstart shows what httpretry does with requests that fail.

Usage:
  quickstart                    a demo with a server of its own, about six seconds
  quickstart -url URL [flags]   the same client against a real server

Flags that go with -url:
  -url URL          where the requests go, http:// or https://
  -n N              how many requests, 1 to 100000 (default 10)
  -rate R           how many of them start per second, up to 1000 (default 5)
  -method M         their method (default GET); a POST is repeated only if it
                    never reached the server
  -attempts N       most attempts of one request, 1 to 100 (default 3)
  -timeout D        longest time for one attempt (default 10s; 0: no limit)
  -strategy NAME    how waits grow: constant, linear, exponential, full, equal,
                    decorrelated, aws, v2 (default v2)
  -base D           the strategy's first or typical wait (default: its own)
  -max D            the strategy's longest wait (default: its own)

Durations are written like 250ms, 2s or 1m30s. Colours are used on a terminal
unless NO_COLOR is set.

Ctrl-C cancels what is running and still prints the summary.

Exit status:
  0     every request succeeded; in the demo, every scenario did what it says
  1     some request, or some scenario, did not
  2     the flags are wrong
  130   interrupted by Ctrl-C (SIGINT) or SIGTERM
`

type options struct {
	url      string // "": the demo
	n        int
	rate     float64
	method   string
	attempts int
	timeout  time.Duration
	backoff  strategies.Strategy
}

// parseFlags returns what the command line asks for, [flag.ErrHelp] for -h, or
// an error that names the flag, its value and what is allowed.
func parseFlags(args []string) (options, error) {
	opts := options{n: 10, rate: 5, method: http.MethodGet, attempts: 3, timeout: 10 * time.Second}
	var strategy string
	var base, longest time.Duration

	fs := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are returned, and run prints them once
	const duration = "a duration such as 250ms or 2s, not negative"
	define(fs, "url", &opts.url, parseString, validURL, "an absolute http:// or https:// URL")
	define(fs, "n", &opts.n, strconv.Atoi, within(1, 100_000), "a whole number from 1 to 100000")
	define(fs, "rate", &opts.rate, parseFloat, within(0.001, 1000), "a number from 0.001 to 1000")
	define(fs, "method", &opts.method, parseString, validMethod, "an HTTP method such as GET")
	define(fs, "attempts", &opts.attempts, strconv.Atoi, within(1, 100), "a whole number from 1 to 100")
	define(fs, "timeout", &opts.timeout, time.ParseDuration, notNegative, duration)
	define(fs, "strategy", &strategy, parseString, validStrategy, "one of "+strings.Join(strategyNames(), ", "))
	define(fs, "base", &base, time.ParseDuration, notNegative, duration)
	define(fs, "max", &longest, time.ParseDuration, notNegative, duration)
	if err := fs.Parse(args); err != nil {
		return opts, err
	}

	var err error
	opts.backoff, err = newStrategy(strategy, base, longest)
	fs.Visit(func(f *flag.Flag) {
		if opts.url == "" && err == nil {
			err = fmt.Errorf("-%s %s: goes with -url only; the demo has no flags", f.Name, f.Value)
		}
	})
	if fs.NArg() > 0 {
		err = fmt.Errorf("%q: not a flag; all that is allowed are flags", fs.Arg(0))
	}
	return opts, err
}

// checked is a [flag.Value] that says what it wants when it gets something
// else, and remembers what it got.
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

func parseString(text string) (string, error) { return text, nil }

func parseFloat(text string) (float64, error) { return strconv.ParseFloat(text, 64) }

func within[N int | float64](low, high N) func(N) bool {
	return func(n N) bool { return low <= n && n <= high }
}

func notNegative(d time.Duration) bool { return d >= 0 }

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
	return []string{"constant", "linear", "exponential", "full", "equal", "decorrelated", "aws", "v2"}
}

// newStrategy returns the strategy of that name. A zero base or longest is the
// strategy's own default.
func newStrategy(name string, base, longest time.Duration) (strategies.Strategy, error) {
	var s strategies.Strategy
	switch name {
	case "constant":
		if longest != 0 {
			return nil, fmt.Errorf("-max %v: -strategy constant waits -base every time and has no -max", longest)
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
	// Each strategy knows its limits. New would check them as well, but its
	// errors name the fields of its Config, and here they are flags.
	if err := strategies.Validate(s); err != nil {
		return nil, fmt.Errorf("-base %v -max %v: %w", base, longest, err)
	}
	return s, nil
}
