// Perf measures the cost of httpretry beside other clients, and prints tables
// of Markdown. It exits with status 1 if httpretry fails a check.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"time"

	"github.com/seed421102f4/httpretry/bench/internal/child"
	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

// plan is how much is measured.
type plan struct {
	rounds         int
	length         time.Duration // of a window
	loopbackRounds int
	loopbackLength time.Duration
	waitingRounds  int
	waiting        int // requests to a function
	connected      int // requests to a server
}

var (
	full = plan{
		rounds: 351, length: time.Millisecond,
		loopbackRounds: 81, loopbackLength: 40 * time.Millisecond,
		waitingRounds: 3, waiting: 2000, connected: 200,
	}
	quick = plan{
		rounds: 5, length: time.Millisecond / 4,
		loopbackRounds: 2, loopbackLength: 20 * time.Millisecond,
		waitingRounds: 1, waiting: 200, connected: 50,
	}
)

func main() {
	child.ServeIfStarted(newHandler)
	isQuick := flag.Bool("quick", false, "only check that everything works: the figures mean nothing")
	seed := flag.Uint64("seed", rand.Uint64(), "seed of the order")
	only := flag.String("run", "", "run only the tables whose titles match this regular expression")
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "-run:", err)
		os.Exit(2)
	}
	p := full
	if *isQuick {
		p = quick
	}
	printHeader(*seed)
	failures, err := run(p, match, rand.New(rand.NewPCG(*seed, 0)))
	if err != nil {
		failures = append(failures, err.Error())
	}
	for _, f := range failures {
		fmt.Fprintln(os.Stderr, "FAIL:", f)
	}
	if len(failures) > 0 {
		os.Exit(1)
	}
}

// printHeader prints the conditions of the measurements.
func printHeader(seed uint64) {
	fmt.Printf("%s %s/%s, %d CPUs, %s, seed %d\n\n", runtime.Version(), runtime.GOOS, runtime.GOARCH,
		runtime.NumCPU(), time.Now().UTC().Format(time.DateOnly), seed)
	for _, p := range peers.All() {
		fmt.Printf("- %s: %s %s\n", p.Name, cmp.Or(p.Module, "net/http"), p.Version())
	}
}

// run prints the tables whose titles match, and returns the problems of
// httpretry.
func run(p plan, match *regexp.Regexp, rng *rand.Rand) (failures []string, err error) {
	s, err := child.Start()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	show := func(title string, f func() (table, []string)) {
		if match.MatchString(title) {
			t, bad := f()
			t.print(os.Stdout)
			failures = append(failures, bad...)
		}
	}
	for _, r := range rows() {
		show(r.title, func() (table, []string) { return r.run(p, rng) })
	}
	show(loopbackTitle, func() (table, []string) { return runLoopback(s, p, rng) })
	show(waitingTitle, func() (table, []string) { return runWaiting(s, p, rng) })
	return failures, nil
}
