// Mutation changes the code of the root package, of strategies, of policyfile
// and of the leaves in internal in one place at a time, and runs the tests that
// reach it. A change that no test notices survives.
//
//	.ci/mutate -n 300 -seed 1
//
// A change negates a condition, moves the bound of a comparison, swaps && and
// ||, + and -, or a result of true and false, or removes a call, an assignment,
// a defer or go statement, or a case. The tree stays as it is, because the go
// command gets the changed file with -overlay. A change that does not compile
// is not counted; another is drawn.
//
// The places that each test reaches, and the results, are kept in a folder
// outside of the tree, by a hash of the files. A run that was stopped
// continues.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

var (
	seed   = flag.Uint64("seed", 1, "draw the places by this seed")
	count  = flag.Int("n", 50, "change this many places; 0: all")
	only   = flag.String("only", "", "change only these: files, folders, or file:line, with commas between them")
	tests  = flag.String("tests", "", "run only the tests in these folders, with commas between them")
	limit  = flag.Duration("timeout", 20*time.Second, "a run of tests may take this and ten times its time without a change")
	jobs   = flag.Int("j", runtime.NumCPU(), "try this many changes at a time")
	output = flag.String("o", "", "write the survivors to this file, too")
	show   = flag.Bool("show", false, "print the places, and how many tests reach them, without trying them")
	fresh  = flag.Bool("fresh", false, "do not use earlier results")
	list   = flag.String("equivalent", ".ci/mutate.equivalent", "the list of changes that make no difference")
	cache  = flag.String("cache", "", "the folder for results and for the places that tests reach (default: in os.UserCacheDir)")
)

func main() {
	flag.Usage = func() { // without the path that go run gives the program
		fmt.Fprintln(flag.CommandLine.Output(), "Usage of .ci/mutate:")
		flag.PrintDefaults()
	}
	flag.Parse()
	survivors, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	}
	if survivors > 0 {
		os.Exit(1)
	}
}

func goVersion() string { return runtime.Version() }

func run() (survivors int, err error) {
	pr := &project{jobs: *jobs, limit: *limit, cache: *cache, tests: *tests}
	if pr.root, err = os.Getwd(); err != nil {
		return 0, err
	}
	if pr.cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return 0, err
		}
		pr.cache = filepath.Join(user, "httpretry-mutate")
	}
	if err := errors.Join(os.MkdirAll(pr.cache, 0o755), pr.load()); err != nil {
		return 0, err
	}
	places, err := pr.places()
	if err != nil {
		return 0, err
	}
	equivalents, err := readEquivalents(*list)
	if err != nil {
		return 0, err
	}
	s := &sample{project: pr, places: restrict(places, *only), equivalents: equivalents, totals: map[string]int{}}
	s.ended.L = &s.mu
	stale := s.stale(places)
	s.draw()
	if err := pr.cover(); err != nil {
		return 0, err
	}
	if *show {
		s.show()
		return stale, nil
	}
	if err := s.run(); err != nil {
		return 0, err
	}
	return stale + s.totals[survived] + s.totals[unreached], s.summary()
}

func (pr *project) places() ([]*place, error) {
	var all []*place
	for _, p := range pr.targets() {
		for _, file := range p.GoFiles {
			places, err := findPlaces(pr.root, pr.relative(filepath.Join(p.Dir, file)))
			if err != nil {
				return nil, err
			}
			all = append(all, places...)
		}
	}
	return all, nil
}

func restrict(places []*place, to string) []*place {
	if to == "" {
		return places
	}
	var some []*place
	for _, p := range places {
		for _, one := range strings.Split(to, ",") {
			one = filepath.Clean(one)
			if p.File == one || p.Dir == one || fmt.Sprintf("%s:%d", p.File, p.Line) == one {
				some = append(some, p)
				break
			}
		}
	}
	return some
}

// A sample is the places of one run and their results.
type sample struct {
	*project
	places      []*place // in the order in which they are drawn
	equivalents []*equivalent
	known       map[string]*result
	file        *os.File // of the results

	mu        sync.Mutex
	next      int // index of places
	counted   int // results, but for changes that do not compile
	busy      int // trials that run
	ended     sync.Cond
	totals    map[string]int
	survivors strings.Builder
	err       error
}

// stale reports the entries of the list that match no place.
func (s *sample) stale(places []*place) (n int) {
	for _, p := range places {
		if e := find(s.equivalents, p); e != nil {
			e.matched = true
		}
	}
	for _, e := range s.equivalents {
		if !e.matched {
			fmt.Printf("%s:%d: nothing in %s of %s can be changed so\n", *list, e.line, e.function, e.file)
			n++
		}
	}
	return n
}

func (s *sample) show() {
	for _, p := range s.places[:min(*count, len(s.places))] {
		tests := 0
		for _, suite := range s.suites {
			for _, t := range suite.Tests {
				if s.reaches(t, p) {
					tests++
				}
			}
		}
		fmt.Printf("%d tests reach %s", tests, p)
	}
	fmt.Println(len(s.places), "places")
}

func (s *sample) draw() {
	random := rand.New(rand.NewPCG(*seed, 0))
	random.Shuffle(len(s.places), func(i, j int) { s.places[i], s.places[j] = s.places[j], s.places[i] })
	if *count == 0 {
		*count = len(s.places)
	}
}

// open reads the earlier results of this tree, and opens their file for more.
func (s *sample) open() (err error) {
	s.known = map[string]*result{}
	file := filepath.Join(s.cache, "results-"+s.treeKey()+".jsonl")
	if *fresh {
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	if s.file, err = os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644); err != nil {
		return err
	}
	for lines := bufio.NewScanner(s.file); lines.Scan(); {
		r := &result{}
		if json.Unmarshal(lines.Bytes(), r) == nil { // the last line may be cut off
			s.known[r.ID] = r
		}
	}
	return nil
}

func (s *sample) run() error {
	if err := s.open(); err != nil {
		return err
	}
	defer s.file.Close()
	fmt.Printf("%d places, %d to try, results in %s\n", len(s.places), min(*count, len(s.places)), s.file.Name())
	var wg sync.WaitGroup
	for range max(s.jobs, 1) {
		wg.Go(func() {
			for p := s.take(); p != nil; p = s.take() {
				r, err := s.result(p)
				s.done(p, r, err)
			}
		})
	}
	wg.Wait()
	return s.err
}

func (s *sample) result(p *place) (*result, error) {
	if find(s.equivalents, p) != nil {
		return &result{ID: p.id(), Result: equal}, nil
	}
	if r := s.known[p.id()]; r != nil {
		return r, nil
	}
	return s.try(p)
}

// take returns the next place, or nil if enough are counted. It waits for
// trials that run, because their changes may turn out not to compile.
func (s *sample) take() *place {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.err == nil && s.next < len(s.places) && s.counted < *count {
		if s.counted+s.busy < *count {
			s.busy++
			s.next++
			return s.places[s.next-1]
		}
		s.ended.Wait()
	}
	return nil
}

// done counts a result, prints it and keeps it for the next run.
func (s *sample) done(p *place, r *result, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.ended.Broadcast()
	s.busy--
	if err == nil && s.known[r.ID] == nil && r.Result != equal {
		err = json.NewEncoder(s.file).Encode(r)
	}
	if s.err = errors.Join(s.err, err); s.err != nil {
		return
	}
	s.totals[r.Result]++
	if r.Result != notCompile {
		s.counted++
	}
	by, others, _ := strings.Cut(r.By, "|")
	if others != "" {
		by += " or one run with it"
	}
	fmt.Printf("%d/%d %s (%.1f s) %s\n%s", s.counted, *count, r.Result, r.Took.Seconds(), by, p)
	for _, name := range r.Flaky {
		fmt.Printf("\tfailed once in three runs: %s\n", name)
	}
	if r.Result == survived || r.Result == unreached {
		fmt.Fprint(&s.survivors, p)
	}
}

func (s *sample) summary() error {
	if s.survivors.Len() > 0 {
		fmt.Printf("\nno test notices these:\n%s", s.survivors.String())
	}
	killed := s.totals[byTest] + s.totals[byTimeout]
	fmt.Printf("\n%d places: %d killed by a test, %d killed by a time-out, %d survived, %d not reached by any test, %d in the list; %d more did not compile\n",
		s.counted, s.totals[byTest], s.totals[byTimeout], s.totals[survived], s.totals[unreached], s.totals[equal], s.totals[notCompile])
	if n := s.counted - s.totals[equal]; n > 0 {
		fmt.Printf("%.1f %% of those that are not in the list are killed\n", 100*float64(killed)/float64(n))
	}
	if *output == "" {
		return nil
	}
	return os.WriteFile(*output, []byte(s.survivors.String()), 0o644)
}
