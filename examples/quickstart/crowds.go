package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry"
)

const many = 40 // requests at the same time

// outage shows why there is a retry budget. While a host is down, no single
// request can know that its retries are useless, and the retries of all
// requests together keep the host down.
func (d *demo) outage() {
	d.title(fmt.Sprintf("An outage: %d requests at once, every response a 503", many))
	d.print("  %-26s  %8s  %10s  %7s\n", "", "requests", "server saw", "retries")
	down := slices.Repeat(script{status(503)}, 3*many)
	budget := new(httpretry.HostBudget) // the default
	var problems []error
	for _, p := range []struct {
		name        string
		path        string
		script      script
		requests    int
		budget      httpretry.Budget
		least, most int // retries
	}{
		{"without a budget", "/down", down, many, httpretry.Unlimited{}, 2 * many, 2 * many},
		// A slow machine may take so long that the budget allows a few more.
		{"with the default budget", "/down-budget", down, many, budget, 5, 9},
		{"the server works again", "/up", nil, 60, budget, 0, 0},
		{"one 503: it is retried", "/single", script{status(503)}, 1, budget, 1, 1},
	} {
		d.server.play(p.path, p.script)
		client, err := d.client(nil, httpretry.Policy{Budget: p.budget}, nil)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		sendAll(client, p.requests, d.server.URL+p.path)
		client.CloseIdleConnections()

		saw := d.server.tally(p.path).requests
		retries := saw - p.requests
		d.print("  %-26s  %8d  %10d  %7d\n", p.name, p.requests, saw, retries)
		if retries < p.least || retries > p.most {
			problems = append(problems, fmt.Errorf("%s: %d retries, expected %d to %d",
				p.name, retries, p.least, p.most))
		}
	}
	d.verdict(errors.Join(problems...),
		"the budget stopped the retries, and successes allowed new ones")
}

// cooldowns shows what a policy's Cooldown does with requests that begin while
// their host is cooling down.
func (d *demo) cooldowns() {
	d.title(fmt.Sprintf(
		"A 429 asks to wait: %d other requests begin before that is over", many))
	d.print("  %-26s  %8s  %10s  %9s  %8s\n",
		"", "requests", "too early", "succeeded", "not sent")
	const short = 500 * time.Millisecond
	var problems []error
	for _, c := range []cooldown{
		{"Send: only retries wait", httpretry.CooldownSend, short, many, many, 0},
		{"Wait: all wait", httpretry.CooldownWait, short, 0, many, 0},
		// Long, so that it does not end while the requests begin. Nothing waits
		// for it.
		{"Fail: none is sent", httpretry.CooldownFail, 50 * time.Second, 0, 0, many},
	} {
		problems = append(problems, d.cooldown(c))
	}
	d.verdict(errors.Join(problems...), "no retry was early, nor a request that had to wait")
}

// cooldown is a test of a policy's Cooldown with many requests. It has the wait
// that the 429 asks for and the expected numbers of requests after it.
type cooldown struct {
	name  string
	value httpretry.Cooldown
	asks  time.Duration

	early     int // that the server saw before the wait was over
	succeeded int
	notSent   int
}

// cooldown sends one request, which gets a 429, and then the others at once. It
// prints the numbers and returns an error if they are not as expected.
func (d *demo) cooldown(c cooldown) error {
	path := fmt.Sprintf("/cooldown-%v", c.value)
	var early atomic.Int64
	d.server.play(path, slices.Repeat(script{cooling(c.asks, &early)}, 1+3*many))
	client, err := d.client(nil,
		httpretry.Policy{Cooldown: c.value, Budget: httpretry.Unlimited{}}, nil)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()

	url := d.server.URL + path
	once := httpretry.WithoutRetries(context.Background())
	if _, err := send(once, client, http.MethodGet, url, ""); err != nil {
		return err
	}
	got := c
	got.succeeded, got.notSent = sendAll(client, many, url)
	got.early = int(early.Load()) - 1 // without the first request
	d.print("  %-26s  %8d  %10d  %9d  %8d\n", c.name, many, got.early, got.succeeded, got.notSent)
	// A slow machine may send some of them when the wait is over.
	got.early = max(got.early, c.early)
	if got != c {
		return fmt.Errorf("%s: got %+v, expected %+v", c.name, got, c)
	}
	return nil
}

// cooling responds with 429 until that long after the first request, and counts
// these responses.
func cooling(asks time.Duration, early *atomic.Int64) http.HandlerFunc {
	end := sync.OnceValue(func() time.Time { return time.Now().Add(asks) })
	return func(w http.ResponseWriter, r *http.Request) {
		if left := time.Until(end()); left > 0 {
			early.Add(1)
			status(http.StatusTooManyRequests,
				"Retry-After-Ms", strconv.FormatInt(left.Milliseconds()+1, 10))(w, r)
		}
	}
}

// sendAll sends n GETs at once. It returns how many got a 200, and how many
// were not sent because the host was cooling down.
func sendAll(client *http.Client, n int, url string) (succeeded, notSent int) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			code, err := send(context.Background(), client, http.MethodGet, url, "")
			_, cooling := errors.AsType[*httpretry.CooldownError](err)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case code == http.StatusOK:
				succeeded++
			case cooling:
				notSent++
			}
		})
	}
	wg.Wait()
	return succeeded, notSent
}
