package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

const (
	// wait is as short as one can be that still takes a timer.
	wait = time.Nanosecond

	afterFailure = "after a 503: "
)

// row is a request that each contestant sends to an in-process base.
type row struct {
	title    string
	method   string
	keyed    bool  // it has an Idempotency-Key
	size     int64 // of its body
	streamed bool  // its body has no GetBody
	own      bool  // its GetBody is not that of http.NewRequest
	fails    int   // attempts that fail before one succeeds
	unsafe   bool  // it must not be sent again after a 503
}

func rows() []row {
	return []row{
		{title: "Success: GET", method: "GET"},
		{title: "Success: POST with an idempotency key, 1 KiB with GetBody", method: "POST", keyed: true, size: 1 << 10},
		{title: "Success: POST with an idempotency key, 1 KiB with a GetBody of the caller's own", method: "POST", keyed: true, size: 1 << 10, own: true},
		{title: "Success: POST without a key, 1 KiB with GetBody", method: "POST", size: 1 << 10, unsafe: true},
		{title: "One retry: GET, 503 with 512 bytes, then 200", method: "GET", fails: 1},
		{title: "One retry: POST with a key, 1 KiB with GetBody, 503 with 512 bytes, then 200", method: "POST", keyed: true, size: 1 << 10, fails: 1},
		{title: "Success: PUT of a stream of 64 KiB without GetBody", method: "PUT", size: 64 << 10, streamed: true},
	}
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
	var body io.Reader
	if r.size > 0 && !r.streamed {
		body = strings.NewReader(content) // NewRequest knows this type, and sets GetBody
	}
	req, err := http.NewRequest(r.method, "https://api.example.com/v1/charges", body)
	if err != nil {
		panic(err) // the rows are constant
	}
	if r.streamed {
		c.stream = &stream{size: r.size, content: b.content}
		req.ContentLength = r.size
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
	if problem := wrongRetries(made, r.unsafe); problem != "" {
		return []string{problem}, false
	}
	want := 2
	if r.unsafe {
		want = 1
		// The response to an attempt that is not retried is a 503.
		delete(c.problems, "ends with 503")
	}
	return prefix(afterFailure, c.check(want)), !failed
}

// BenchmarkRequest sends requests to a base in the same process, one after the
// other.
func BenchmarkRequest(b *testing.B) {
	for _, r := range rows() {
		for _, l := range levels() {
			for _, p := range contenders() {
				b.Run(fmt.Sprintf("request=%s/level=%s/client=%s", r.title, l.name, p.Name),
					func(b *testing.B) { r.bench(b, p, l) })
			}
		}
	}
}

func (r row) bench(b *testing.B, p peers.Peer, l level) {
	c := r.newCaller(p, l, r.fails, false)
	if c == nil {
		b.Skip("is not an http.RoundTripper")
	}
	problems, retried := r.probe(p, l)
	if r.fails > 0 {
		if !retried { // there is nothing to measure
			report(b, p, problems)
			b.SkipNow()
		}
		problems = nil // check sees failures, too
	}
	b.ReportAllocs()
	start := cpuTime()
	for b.Loop() {
		c.send(1)
	}
	reportCPU(b, start)
	report(b, p, withoutRepeats(append(problems, c.check(1+r.fails)...)))
}

// reportCPU reports the CPU time since start, which was returned by cpuTime.
func reportCPU(b *testing.B, start time.Duration) {
	b.ReportMetric(float64(cpuTime()-start)/float64(b.N), "cpu-ns/op")
}

// report fails for a problem of httpretry, and logs those of other clients.
func report(b *testing.B, p peers.Peer, problems []string) {
	switch text := strings.Join(problems, "; "); {
	case text == "":
	case strings.HasPrefix(p.Name, ours):
		b.Error(text)
	default:
		b.Log(text)
	}
}

// withoutRepeats removes the problems after a 503 that are not only there.
func withoutRepeats(all []string) []string {
	return slices.DeleteFunc(all, func(problem string) bool {
		always, conditional := strings.CutPrefix(problem, afterFailure)
		return conditional && slices.Contains(all, always)
	})
}

// wrongRetries returns the problem with the number of attempts of a request that
// got a 503, or "".
func wrongRetries(attempts int, unsafe bool) string {
	switch {
	case unsafe && attempts == 2:
		return "sends it twice after a 503"
	case unsafe && attempts > 2:
		return fmt.Sprintf("sends it %d times after a 503", attempts)
	case attempts == 1 && !unsafe:
		return "does not retry after a 503"
	}
	return ""
}
