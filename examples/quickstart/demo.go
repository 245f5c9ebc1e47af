package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// scenario is one request to a server that fails in some way.
type scenario struct {
	title   string
	method  string // "" means GET
	path    string
	key     string                 // idempotency key, if any
	script  script                 // how the server fails
	policy  httpretry.Policy       // see client for the defaults
	timeout time.Duration          // for the request; 0 means none
	base    func() *http.Transport // nil means the library's default
	want    result
}

// result has the counts of the client and of the server for one request.
type result struct {
	status   int // 0 for an error
	reason   httpretry.Reason
	attempts int
	tally    // the server's
}

func (r result) String() string {
	text := fmt.Sprintf("caller got %d after %s; server saw %s",
		r.status, count(r.attempts, "attempt"), count(r.requests, "request"))
	if r.charges > 0 {
		text += ", made " + count(r.charges, "charge")
	}
	return text
}

func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// demo runs the scenarios.
type demo struct {
	server *server
	out    *screen
	counts *counters
	failed int
}

// runDemo runs the scenarios, one after the other, until ctx is done.
func runDemo(ctx context.Context, _ options, out *screen, counts *counters) error {
	server, err := startServer()
	if err != nil {
		return err
	}
	defer server.stop()
	d := &demo{server: server, out: out, counts: counts}

	out.heading()
	all := scenarios()
	for i, s := range all {
		out.title(fmt.Sprintf("%d. %s", i+1, s.title))
		d.report(ctx, d.run(ctx, s), s.want.String())
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	d.outage(ctx, len(all)+1)
	d.cooldowns(ctx, len(all)+2)
	if d.failed > 0 {
		return fmt.Errorf("%s did not end as its title says", count(d.failed, "scenario"))
	}
	return nil
}

// report prints the result of a scenario, unless it was interrupted.
func (d *demo) report(ctx context.Context, err error, text string) {
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		d.failed++
	}
	d.out.verdict(err, text)
}

// run runs a scenario and returns an error if its result is not as expected.
func (d *demo) run(ctx context.Context, s scenario) error {
	d.server.play(s.path, s.script)
	var last httpretry.Event
	var early error
	client, err := d.client(s.base, s.policy, func(ctx context.Context, e httpretry.Event) {
		d.out.observe(ctx, e)
		// There is no lock, since Observe runs on the goroutine of its
		// request, and here is only one.
		last = e
		if e.Reason == httpretry.ReasonNone && e.Wait < e.Asked {
			early = fmt.Errorf("waits %v where the server asks for %v", e.Wait, e.Asked)
		}
	})
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()

	if s.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.timeout)
		defer cancel()
	}
	header := make(http.Header)
	if s.key != "" {
		header.Set("Idempotency-Key", s.key)
	}
	code, err := send(ctx, client, s.method, d.server.url+s.path, header)

	got := result{code, last.Reason, last.Attempt, d.server.tally(s.path)}
	if got != s.want {
		return errors.Join(fmt.Errorf("%v (%v); expected: %v (%v)",
			got, got.reason, s.want, s.want.reason), early, err)
	}
	return early
}

type observer = func(context.Context, httpretry.Event)

// client returns a new client, so that no connection and no retry budget
// remains from the scenario before.
func (d *demo) client(
	base func() *http.Transport, p httpretry.Policy, observe observer,
) (*http.Client, error) {
	if p.Backoff == nil {
		// A third of the default, for a short demo.
		p.Backoff = strategies.DecorrelatedV2{Median: 150 * time.Millisecond, Max: time.Second}
	}
	cfg := httpretry.Config{
		Policy: p,
		Observe: func(ctx context.Context, e httpretry.Event) {
			d.counts.observe(ctx, e)
			observe(ctx, e)
		},
	}
	if base != nil {
		cfg.Base = base()
	}
	transport, err := httpretry.New(cfg)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport}, nil
}
