package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry"
)

const burst = 40 // requests that are under way at the same time

// phase is a part of the outage.
type phase struct {
	name     string
	path     string
	script   script
	requests int
	budget   httpretry.Budget
	retries  int        // that the budget must grant
	refill   func() int // and how many more it may have granted by now
}

// outage shows why there is a retry budget. While a host is down for everybody
// no single request can know that its retries are in vain, and together they
// keep the host down.
func (d *demo) outage(ctx context.Context, number int) {
	d.out.title(fmt.Sprintf("%d. An outage: %d requests at once, every answer a 503", number, burst))
	d.out.print("  %-34s  %8s  %10s  %7s  %12s\n", "", "requests", "server saw", "retries", "balance then")

	budget, began := new(httpretry.HostBudget), time.Now()
	// What a policy with no Budget of its own uses, too: 3 retries in any 10
	// seconds, whatever happens, and one more for every 10 successes.
	refill := func() int { return int(3 * time.Since(began).Seconds() / 10) }
	down := make(script, burst*httpretry.DefaultMaxAttempts)
	for i := range down {
		down[i] = status(503)
	}
	none := func() int { return 0 }
	phases := []phase{
		{"without a budget", "/down", down, burst, httpretry.Unlimited{}, 2 * burst, none},
		{"with the default budget", "/down-budget", down, burst, budget, 3, refill},
		{"the server is back", "/up", nil, 60, budget, 0, none},
		{"a single 503: it has its retry again", "/hiccup", script{status(503)}, 1, budget, 1, none},
	}
	var problems []error
	for _, p := range phases {
		problems = append(problems, d.phase(ctx, p))
		if ctx.Err() != nil {
			return
		}
	}
	d.report(ctx, errors.Join(problems...), "retries stopped at the budget's floor; successes earned new ones")
}

// phase sends the requests of a phase, all at once, prints a line about it and
// returns an error if the server saw more or less than it should have.
func (d *demo) phase(ctx context.Context, p phase) error {
	d.server.play(p.path, p.script)
	counts := new(counters)
	client, err := d.client(nil, httpretry.Policy{Budget: p.budget}, counts.observe)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()

	var wg sync.WaitGroup
	for range p.requests {
		// Nothing depends on the single result: the counters have them all.
		wg.Go(func() { _, _ = send(ctx, client, http.MethodGet, d.server.url+p.path, nil) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil // cut short, there is nothing to tell
	}

	saw, balance := d.server.tally(p.path).requests, "-"
	if b, ok := p.budget.(*httpretry.HostBudget); ok {
		balance = strconv.Itoa(b.Balance(d.server.host))
	}
	d.out.print("  %-34s  %8d  %10d  %7d  %12s\n", p.name, p.requests, saw, counts.retries(), balance)

	least := p.requests + p.retries
	if most := least + p.refill(); saw < least || saw > most || saw != p.requests+counts.retries() {
		return fmt.Errorf("%s: server saw %d requests, expected %d to %d", p.name, saw, least, most)
	}
	return nil
}
