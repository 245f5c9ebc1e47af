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
func (d *demo) outage() (err error) {
	d.title(fmt.Sprintf("An outage: %d requests at once, every response a 503", many))
	d.print("  %-26s  %8s  %10s  %7s\n", "", "requests", "server saw", "retries")
	down := slices.Repeat(script{status(503)}, 3*many)
	budget := new(httpretry.HostBudget) // the default
	for _, p := range []struct {
		name, path  string
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
		client := d.client(nil, httpretry.Policy{Budget: p.budget}, nil)
		d.sendAll(client, p.requests, p.path)
		saw := d.server.tally(p.path).requests
		retries := saw - p.requests
		d.print("  %-26s  %8d  %10d  %7d\n", p.name, p.requests, saw, retries)
		if retries < p.least || retries > p.most {
			err = errors.Join(err, fmt.Errorf("%s: %d retries, expected %d to %d",
				p.name, retries, p.least, p.most))
		}
	}
	return err
}

// cooldowns shows what a policy's Cooldown does with requests that begin while
// their host is cooling down. One request gets a 429, and then the others begin
// at once.
func (d *demo) cooldowns() (err error) {
	d.title(fmt.Sprintf("A 429 asks to wait: %d other requests begin before that is over", many))
	d.print("  %-26s  %8s  %10s  %9s  %8s\n", "", "requests", "too early", "succeeded", "not sent")
	const short = 500 * time.Millisecond
	for _, c := range []struct {
		name                     string
		value                    httpretry.Cooldown
		asks                     time.Duration
		early, succeeded, unsent int // early: that the server saw before the wait was over
	}{
		{"Send: only retries wait", httpretry.CooldownSend, short, many, many, 0},
		{"Wait: all wait", httpretry.CooldownWait, short, 0, many, 0},
		// Long, so that it does not end while the requests begin. Nothing waits
		// for it.
		{"Fail: none is sent", httpretry.CooldownFail, 50 * time.Second, 0, 0, many},
	} {
		path := fmt.Sprintf("/cooldown-%v", c.value)
		var seen atomic.Int64
		d.server.play(path, slices.Repeat(script{cooling(c.asks, &seen)}, 1+3*many))
		policy := httpretry.Policy{Cooldown: c.value, Budget: httpretry.Unlimited{}}
		client := d.client(nil, policy, nil)
		once := httpretry.WithoutRetries(context.Background())
		_, failure := d.send(once, client, "GET "+path, "")
		succeeded, unsent := d.sendAll(client, many, path)
		early := int(seen.Load()) - 1 // without the first request
		d.print("  %-26s  %8d  %10d  %9d  %8d\n", c.name, many, early, succeeded, unsent)
		// A slow machine may send some of them when the wait is over.
		if failure != nil || early > c.early || succeeded != c.succeeded || unsent != c.unsent {
			err = errors.Join(err, failure, fmt.Errorf("%s: expected %d, %d and %d",
				c.name, c.early, c.succeeded, c.unsent))
		}
	}
	return err
}

// cooling responds with 429 until that long after the first request, and counts
// these responses.
func cooling(asks time.Duration, seen *atomic.Int64) http.HandlerFunc {
	end := sync.OnceValue(func() time.Time { return time.Now().Add(asks) })
	return func(w http.ResponseWriter, r *http.Request) {
		if left := time.Until(end()); left > 0 {
			seen.Add(1)
			status(http.StatusTooManyRequests,
				"Retry-After-Ms", strconv.FormatInt(left.Milliseconds()+1, 10))(w, r)
		}
	}
}

// sendAll sends n GETs at once. It returns how many got a 200, and how many
// were not sent because the host was cooling down.
func (d *demo) sendAll(client *http.Client, n int, path string) (succeeded, unsent int) {
	defer client.CloseIdleConnections()
	var good, cold atomic.Int64
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			code, err := d.send(context.Background(), client, "GET "+path, "")
			if code == http.StatusOK {
				good.Add(1)
			}
			if _, cooling := errors.AsType[*httpretry.CooldownError](err); cooling {
				cold.Add(1)
			}
		})
	}
	wg.Wait()
	return int(good.Load()), int(cold.Load())
}
