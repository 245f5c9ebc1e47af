package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/bench/internal/child"
	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

const (
	attempts = 3
	// wait is as short as one can be that still takes a timer.
	wait = time.Nanosecond

	ours  = "httpretry"
	bare  = "http.Client"
	naive = "naive loop"

	afterFailure = "after a 503: "
)

// row is a request that each contestant sends to an in-process base.
type row struct {
	title     string
	method    string
	keyed     bool  // it has an Idempotency-Key
	size      int64 // of its body
	streamed  bool  // its body has no GetBody
	own       bool  // its GetBody is not that of http.NewRequest
	fails     int   // attempts that fail before one succeeds
	unsafe    bool  // it must not be sent again after a 503
	reference string
	asRatio   bool // to the reference; else the difference to it
}

func rows() []row {
	return []row{
		{title: "Success: GET", method: "GET", reference: bare},
		{title: "Success: POST with an idempotency key, 1 KiB with GetBody", method: "POST", keyed: true, size: 1 << 10, reference: bare},
		{title: "Success: POST with an idempotency key, 1 KiB with a GetBody of the caller's own", method: "POST", keyed: true, size: 1 << 10, own: true, reference: bare},
		{title: "Success: POST without a key, 1 KiB with GetBody", method: "POST", size: 1 << 10, unsafe: true, reference: bare},
		{title: "One retry: GET, 503 with 512 bytes, then 200", method: "GET", fails: 1, reference: naive, asRatio: true},
		{title: "One retry: POST with a key, 1 KiB with GetBody, 503 with 512 bytes, then 200", method: "POST", keyed: true, size: 1 << 10, fails: 1, reference: naive, asRatio: true},
		{title: "Success: PUT of a stream of 64 KiB without GetBody", method: "PUT", size: 64 << 10, streamed: true, reference: bare, asRatio: true},
	}
}

// contenders returns the peers and one more, httpretry with all that a policy
// can have without copying the request.
func contenders() []peers.Peer {
	all := peers.All()
	full := peers.Peer{
		Name:         ours + ", observer and host policies",
		Module:       all[0].Module,
		RoundTripper: fullTransport,
		New:          func(o peers.Options) peers.Client { return &http.Client{Transport: fullTransport(o)} },
	}
	return append([]peers.Peer{all[0], full}, all[1:]...)
}

func fullTransport(o peers.Options) http.RoundTripper {
	policy := httpretry.Policy{
		MaxAttempts: o.Attempts,
		Backoff:     peers.Constant(o.Wait),
		MaxElapsed:  time.Minute,
		Budget:      &httpretry.HostBudget{Ratio: 0.2},
	}
	if o.NoBudget {
		policy.Budget = httpretry.Unlimited{}
	}
	t, err := httpretry.New(httpretry.Config{
		Base:    o.Base,
		Observe: func(context.Context, httpretry.Event) {},
		Policy:  policy,
		Policies: map[string]httpretry.Policy{
			"api.example.com":      policy,
			"*.example.com":        {MaxAttempts: 4},
			"*.cdn.example.com":    {MaxAttempts: 2},
			"other.example.com:81": {MaxAttempts: 1},
		},
	})
	if err != nil {
		panic(err) // these settings are valid
	}
	return t
}

// level is where a contestant is called.
type level struct {
	name string
	call func(peers.Peer, peers.Options) func(*http.Request) (*http.Response, error) // nil: cannot be called there
}

// levels returns the two levels. Programs call the first, and only libraries
// that are an http.RoundTripper have the second.
func levels() []level {
	return []level{
		{"Do", func(p peers.Peer, o peers.Options) func(*http.Request) (*http.Response, error) {
			return p.New(o).Do
		}},
		{"RoundTrip", func(p peers.Peer, o peers.Options) func(*http.Request) (*http.Response, error) {
			if p.RoundTripper == nil {
				return nil
			}
			return p.RoundTripper(o).RoundTrip
		}},
	}
}

// newCaller returns a caller of a peer with the row's request, or nil. Content
// is compared byte by byte if exact is set.
func (r row) newCaller(p peers.Peer, l level, fails int, exact bool) *caller {
	b := newBase(r.size)
	content := strings.Repeat("0123456789abcdef", int(r.size)/16)
	if exact {
		b.content = []byte(content)
	}
	do := l.call(p, peers.Options{Base: b, Attempts: attempts, Wait: wait})
	if do == nil {
		return nil
	}
	c := &caller{do: do, base: b, failures: fails, buffer: make([]byte, 1<<10), problems: make(map[string]int)}
	req, err := http.NewRequest(r.method, "https://api.example.com/v1/charges", nil)
	if err != nil {
		panic(err) // the rows are constant
	}
	switch {
	case r.streamed:
		c.stream = &stream{size: r.size, content: b.content}
		req.ContentLength = r.size
	case r.size > 0:
		// NewRequest knows this type of body, and sets GetBody.
		withBody, err := http.NewRequest(r.method, req.URL.String(), strings.NewReader(content))
		if err != nil {
			panic(err)
		}
		req = withBody
	}
	if r.own {
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil }
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	if r.keyed {
		req.Header.Set("Idempotency-Key", "0123456789")
	}
	c.req = req
	return c
}

// probe sends one request whose first attempt fails. It returns the problems,
// and whether the request succeeded.
func (r row) probe(p peers.Peer, l level) (problems []string, succeeded bool) {
	c := r.newCaller(p, l, 1, true)
	c.send(1)
	made, failed := c.base.attempts, len(c.problems) > 0
	switch {
	case r.unsafe && made > 1:
		return []string{fmt.Sprintf("sends it %s after a 503", times(made))}, false
	case made == 1 && !r.unsafe:
		return []string{"does not retry after a 503"}, false
	}
	want := 2
	if r.unsafe {
		want = 1
		// The response to an attempt that is not retried is a 503.
		delete(c.problems, "ends with 503")
	}
	return prefix(afterFailure, c.check(want)), !failed
}

// entrants are the contestants of a row by level and name. One without samples
// cannot run the row.
type entrants map[string]map[string]*contestant

// run measures and returns the table.
func (r row) run(_ *child.Server, p plan, rng *rand.Rand) table {
	found := make(entrants)
	var measured []*contestant
	for _, l := range levels() {
		found[l.name] = make(map[string]*contestant)
		for _, peer := range contenders() {
			c := r.newCaller(peer, l, r.fails, false)
			if c == nil {
				continue
			}
			problems, retried := r.probe(peer, l)
			entrant := &contestant{name: peer.Name, send: c.send}
			entrant.check = func() []string { return c.check(1 + r.fails) }
			found[l.name][peer.Name] = entrant
			switch {
			case r.fails == 0: // its check sees no failure
				entrant.problems = problems
			case !retried: // there is nothing to measure
				entrant.problems = problems
				continue
			}
			measured = append(measured, entrant)
		}
	}
	withoutCollections(func() { measure(measured, p.rounds, p.length, rng) })
	t := table{title: r.title, head: []string{"client"}}
	for _, l := range levels() {
		t.head = append(t.head, l.name+": CPU "+r.unit(), "allocations")
	}
	t.head = append(t.head, "Do: wall clock", "check")
	for _, peer := range contenders() {
		t.add(peer.Name, r.cells(peer.Name, found), found.problems(peer.Name))
	}
	return t
}

func (r row) unit() string {
	if r.asRatio {
		return "ratio to " + r.reference
	}
	return "added"
}

// cells returns the figures of a peer.
func (r row) cells(name string, found entrants) []string {
	var cells []string
	for _, l := range levels() {
		c, reference := found[l.name][name], found[l.name][r.reference]
		cells = append(cells, compare(c, reference, r.asRatio, cpuOf))
		if r.asRatio {
			reference = nil
		}
		cells = append(cells, allocations(c, reference))
	}
	do := found[levels()[0].name]
	return append(cells, compare(do[name], do[r.reference], r.asRatio, wallOf))
}

// problems returns those of a peer on all levels, each of them once.
func (found entrants) problems(name string) []string {
	var all []string
	for _, byName := range found {
		if c := byName[name]; c != nil {
			all = append(all, c.problems...)
		}
	}
	slices.Sort(all)
	return withoutRepeats(slices.Compact(all))
}

// withoutRepeats removes the problems after a 503 that are not only there.
func withoutRepeats(all []string) []string {
	return slices.DeleteFunc(all, func(problem string) bool {
		always, conditional := strings.CutPrefix(problem, afterFailure)
		return conditional && slices.Contains(all, always)
	})
}

func prefix(with string, problems []string) []string {
	var prefixed []string
	for _, p := range problems {
		prefixed = append(prefixed, with+p)
	}
	return prefixed
}

func times(n int) string {
	if n == 2 {
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}
