// Perf measures the cost of httpretry beside other clients, and prints tables
// of Markdown. It exits with status 1 if httpretry fails a check.
package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"time"

	"github.com/seed421102f4/httpretry/bench/internal/child"
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
	stallingRounds int
	growthRounds   int
	growthLength   time.Duration
}

var (
	full = plan{
		rounds: 351, length: time.Millisecond,
		loopbackRounds: 81, loopbackLength: 40 * time.Millisecond,
		waitingRounds: 3, waiting: 2000, connected: 200,
		stallingRounds: 21,
		growthRounds:   41, growthLength: 25 * time.Millisecond,
	}
	quick = plan{
		rounds: 5, length: time.Millisecond / 4,
		loopbackRounds: 2, loopbackLength: 20 * time.Millisecond,
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
	machine := flag.String("machine", "", "describe the processors: \"of an AMD EPYC, otherwise idle\"")
	file := flag.String("update", "", "replace the tables in this `file`, which is README.md of bench")
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
	r := results{conditions: conditions(*seed, *machine), versions: versions()}
	fmt.Print(r.head())
	failures, err := r.measure(p, match, rand.New(rand.NewPCG(*seed, 0)))
	if *file != "" {
		err = errors.Join(err, r.update(*file))
	}
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
	var all []entry
	for _, r := range rows() {
		all = append(all, entry{r.title, r.run})
	}
	for _, r := range loopbackRows() {
		all = append(all, entry{r.title, r.run})
	}
	all = append(all, entry{stallingTitle, runStalling})
	for _, r := range waitingRows() {
		all = append(all, entry{r.title, r.run})
	}
	for _, g := range growthRows() {
		all = append(all, entry{g.title(), g.run})
	}
	return all
}

// measure measures and prints the tables whose titles match, and returns the
// problems of httpretry.
func (r *results) measure(p plan, match *regexp.Regexp, rng *rand.Rand) (failures []string, err error) {
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
		r.tables = append(r.tables, t)
		failures = append(failures, t.failures...)
	}
	return failures, nil
}
