// Perf measures what waiting requests and stalling bodies cost with httpretry
// and other clients, and how the cost of httpretry grows. It prints tables of
// Markdown, and exits with status 1 if httpretry fails a check. The benchmarks
// in this folder measure the cost of a request.
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
	waitingRounds  int
	waiting        int // requests to a function
	connected      int // requests to a server
	stallingRounds int
	growthRounds   int
	growthLength   time.Duration // of a window
}

var (
	full = plan{
		waitingRounds: 3, waiting: 2000, connected: 200,
		stallingRounds: 21,
		growthRounds:   41, growthLength: 25 * time.Millisecond,
	}
	quick = plan{
		waitingRounds: 1, waiting: 1000, connected: 50,
		stallingRounds: 2,
		growthRounds:   3, growthLength: time.Millisecond,
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
	fmt.Printf("Measured on %s with %s on %s/%s, with seed %d, on %d processors.\n\n",
		time.Now().UTC().Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH, *seed, runtime.NumCPU())
	for _, p := range peers.All() {
		fmt.Printf("- %s: %s %s\n", p.Name, cmp.Or(p.Module, "net/http"), p.Version())
	}
	failures, err := measureTables(p, match, rand.New(rand.NewPCG(*seed, 0)))
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

// entry is a table to measure.
type entry struct {
	title string
	run   func(*child.Server, plan, *rand.Rand) table
}

// entries returns all tables, in the order of the README.
func entries() []entry {
	all := []entry{{stallingTitle, runStalling}, {readAheadTitle, runReadAhead}}
	for _, r := range waitingRows() {
		all = append(all, entry{r.title, r.run})
	}
	for _, g := range growthRows() {
		all = append(all, entry{g.title(), g.run})
	}
	return all
}

// measureTables measures and prints the tables whose titles match, and returns
// the problems of httpretry.
func measureTables(p plan, match *regexp.Regexp, rng *rand.Rand) (failures []string, err error) {
	s, err := child.Start()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	for _, e := range entries() {
		if !match.MatchString(e.title) {
			continue
		}
		t := e.run(s, p, rng)
		t.print(os.Stdout)
		failures = append(failures, t.failures...)
	}
	return failures, nil
}
