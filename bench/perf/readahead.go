package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/bench/internal/child"
)

const (
	readAheadTitle = "Reading ahead: GET of 4 KiB over loopback"
	pageSize       = 4 << 10
	pagePath       = "/page/" // then its framing
)

// servePage answers with a page, whose length a chunked response does not state.
func servePage(w http.ResponseWriter, framing string) {
	if framing == "chunked" {
		_ = http.NewResponseController(w).Flush() // a client that left gets nothing
	}
	_, _ = io.WriteString(w, strings.Repeat("p", pageSize))
}

// newPages returns a contestant that gets pages.
func newPages(url string, readAhead int64) *contestant {
	t, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{ReadAhead: readAhead}})
	if err != nil {
		panic(err) // these settings are valid
	}
	client, wrong, sent := &http.Client{Transport: t}, 0, 0
	return &contestant{perRun: 100, send: func(n int) {
		sent += n
		for range n {
			if size, err := getPage(client, url); err != nil || size != pageSize {
				wrong++
			}
		}
	}, check: func() []string {
		if wrong > 0 {
			return []string{share(wrong, sent) + "does not get the page"}
		}
		return nil
	}}
}

func getPage(client *http.Client, url string) (size int64, err error) {
	resp, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return io.Copy(io.Discard, resp.Body)
}

// runReadAhead measures both framings, with ReadAhead and without.
func runReadAhead(s *child.Server, p plan, rng *rand.Rand) table {
	t := table{title: readAheadTitle,
		head: []string{"response", "CPU with ReadAhead / without", "allocations", "check"}}
	for _, framing := range []string{"length", "chunked"} {
		url := s.URL + pagePath + framing
		without, with := newPages(url, 0), newPages(url, 64<<10)
		measure([]*contestant{without, with}, p.growthRounds, p.growthLength, rng)
		ratio := pairwise(with.samples, without.samples,
			func(a, b sample) float64 { return a.cpu / b.cpu })
		t.add(fmt.Sprintf("%s, %s", ours, framing),
			[]string{formatRatio(summarize(ratio)), allocations(with, without)},
			append(with.problems, without.problems...))
	}
	return t
}
