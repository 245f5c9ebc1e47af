package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry"
)

const concurrent = 40 // requests at the same time

// phase is a part of the outage.
type phase struct {
	name     string
	path     string
	script   script
	requests int
	budget   httpretry.Budget
	retries  int           // that the budget must allow
	refill   time.Duration // time in which as many are allowed again; 0: none
}

// outage shows why there is a retry budget. While a host is down, no single
// request can know that its retries are useless, and the retries of all
// requests together keep the host down.
func (d *demo) outage(ctx context.Context, number int) {
	d.out.title(
		fmt.Sprintf("%d. An outage: %d requests at once, every response a 503", number, concurrent))
	d.out.print("  %-26s  %8s  %10s  %7s  %12s\n", "", "requests", "server saw", "retries",
		"retries left")

	// The default. Its balance is the number of retries that it allows now.
	budget := new(httpretry.HostBudget)
	allowed, _ := budget.Balance(d.server.origin)
	none := httpretry.Unlimited{}
	down := slices.Repeat(script{status(503)}, concurrent*3)
	var problems []error
	for _, p := range []phase{
		{"without a budget", "/down", down, concurrent, none, 2 * concurrent, 0},
		{"with the default budget", "/down-budget", down, concurrent, budget, allowed,
			10 * time.Second},
		{"the server works again", "/up", nil, 60, budget, 0, 0},
		{"one 503: it is retried", "/single", script{status(503)}, 1, budget, 1, 0},
	} {
		problems = append(problems, d.phase(ctx, p))
		if ctx.Err() != nil {
			return
		}
	}
	d.report(ctx, errors.Join(problems...),
		"the budget stopped the retries, and successes allowed new ones")
}

// phase sends the requests of a phase, all at once, and prints the numbers. It
// returns an error if the server saw more or fewer requests than expected.
func (d *demo) phase(ctx context.Context, p phase) error {
	d.server.play(p.path, p.script)
	counts := new(counters)
	client, err := d.client(nil, httpretry.Policy{Budget: p.budget}, counts.observe)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()

	start := time.Now()
	var wg sync.WaitGroup
	for range p.requests {
		// The counters have all results.
		wg.Go(func() { _, _ = send(ctx, client, http.MethodGet, d.server.url+p.path, nil) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil // interrupted
	}

	saw, balance := d.server.tally(p.path).requests, "-"
	if b, ok := p.budget.(*httpretry.HostBudget); ok {
		// A host that the budget does not know has had no failure.
		if retries, known := b.Balance(d.server.origin); known {
			balance = strconv.Itoa(retries)
		}
	}
	d.out.print(
		"  %-26s  %8d  %10d  %7d  %12s\n", p.name, p.requests, saw, counts.retries(), balance)

	least := p.requests + p.retries
	most := least
	if p.refill > 0 {
		// A slow machine may take so long that the budget allows more.
		most += int(time.Duration(p.retries) * time.Since(start) / p.refill)
	}
	if saw < least || saw > most || saw != p.requests+counts.retries() {
		return fmt.Errorf("%s: server saw %d requests, expected %d to %d", p.name, saw, least, most)
	}
	return nil
}
