package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry/bench/internal/child"
	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

const (
	stallingTitle = "One retry: GET, 503 whose body stalls after 1 KiB, wait of 100 ms, then 200"

	stallingWait = 100 * time.Millisecond
	// stallingLimit is how long a request may take.
	stallingLimit = 2 * time.Second
)

// stalling sends GETs whose first response is a 503 with a body that stalls.
type stalling struct {
	server   *child.Server
	client   peers.Client
	path     string    // of the peer
	sent     int       // requests
	retried  []float64 // nanoseconds from the 503 until the retry, at the server
	problems []string
}

func newStalling(s *child.Server, p peers.Peer) *stalling {
	return &stalling{
		server: s,
		path:   "/stalling/" + strings.ReplaceAll(p.Name, " ", "-"),
		client: p.New(peers.Options{
			Base:     http.DefaultTransport.(*http.Transport).Clone(),
			Attempts: attempts, Wait: stallingWait,
		}),
	}
}

// measure sends one request, unless there was a problem with one before.
func (s *stalling) measure() {
	if s.problems != nil {
		return
	}
	s.sent++
	retried, problem := s.send()
	made, err := requestCount(s.server, s.path)
	switch {
	case problem != "":
		s.problems = append(s.problems, problem)
	case err != nil:
		s.problems = append(s.problems, err.Error())
	case made != 2*s.sent:
		s.problems = append(s.problems, fmt.Sprintf("%.2f attempts", float64(made)/float64(s.sent)))
	case retried < stallingWait:
		s.problems = append(s.problems, fmt.Sprintf("retries after %v", retried))
	default:
		s.retried = append(s.retried, float64(retried))
	}
}

// send returns the time until the retry, or the problem.
func (s *stalling) send() (retried time.Duration, problem string) {
	ctx, cancel := context.WithTimeout(context.Background(), stallingLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.server.URL+s.path, nil)
	if err != nil {
		panic(err) // the URL is the server's
	}
	req.Header.Set(stallOnce, s.path+"/"+strconv.Itoa(s.sent))
	resp, err := s.client.Do(req)
	switch {
	case ctx.Err() != nil:
		return 0, fmt.Sprintf("waits for the body, for more than %v", stallingLimit)
	case err != nil:
		return 0, "fails: " + err.Error()
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, "does not retry after a 503"
	}
	size, err := io.Copy(io.Discard, resp.Body)
	if err != nil || size != serverBody {
		return 0, "response body not whole"
	}
	nanos, err := strconv.ParseInt(resp.Header.Get(waited), 10, 64)
	if err != nil {
		return 0, err.Error()
	}
	return time.Duration(nanos), ""
}

// runStalling measures and returns the table.
func runStalling(s *child.Server, p plan, _ *rand.Rand) table {
	var all []*stalling
	for _, peer := range contenders() {
		all = append(all, newStalling(s, peer))
	}
	// The requests of a round do little but wait, so they wait together.
	for range p.stallingRounds {
		var wg sync.WaitGroup
		for _, st := range all {
			wg.Go(st.measure)
		}
		wg.Wait()
	}
	t := table{title: stallingTitle, head: []string{"client", "time to the retry", "check"}}
	for i, peer := range contenders() {
		cell := none
		if all[i].problems == nil {
			cell = formatMillis(summarize(all[i].retried))
		}
		t.add(peer.Name, []string{cell}, all[i].problems)
	}
	return t
}
