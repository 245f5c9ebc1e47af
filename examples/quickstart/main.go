// Quickstart shows what httpretry does with requests that fail, one line for
// each attempt. It starts a server on this machine that fails in several ways,
// sends requests through an [http.Client] with a RetryTransport, and compares
// the numbers of client and server with those that each scenario promises. It
// needs no network and takes a few seconds:
//
//	go run ./examples/quickstart
//
// The scenarios are in scenarios.go and crowds.go. examples/basic is the
// shortest program that uses the library.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

func main() {
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run runs the scenarios, one after the other.
func run(out io.Writer) error {
	d := newDemo(out)
	defer d.server.Close()
	d.print("%3s  %-17s %-25s %s\n", "try", "request", "result", "decision")
	for _, s := range scenarios() {
		d.title(s.title)
		d.verdict(d.run(s), s.want.String())
	}
	d.verdict(d.outage(), "the budget stopped the retries, and successes allowed new ones")
	d.verdict(d.cooldowns(), "no retry was early, nor a request that had to wait")
	d.summary()
	if d.failed > 0 {
		return fmt.Errorf("%s did not end as the title says", count(d.failed, "scenario"))
	}
	return nil
}

// demo runs scenarios and prints each attempt.
type demo struct {
	server *server
	out    io.Writer
	titles int // that were printed
	failed int // scenarios

	mu    sync.Mutex
	ended map[ending]int
}

// ending is how a request ended.
type ending struct {
	reason   httpretry.Reason
	attempts int
}

func newDemo(out io.Writer) *demo {
	return &demo{server: newServer(), out: out, ended: map[ending]int{}}
}

// client returns a new client, so that no connection and no retry budget
// remains from the scenario before.
func (d *demo) client(
	base http.RoundTripper, p httpretry.Policy, print func(httpretry.Event),
) *http.Client {
	// The default draws random waits. These are the same in each run.
	p.Backoff = strategies.Constant{Wait: 150 * time.Millisecond}
	transport, err := httpretry.New(httpretry.Config{
		Base:   base,
		Policy: p,
		Observe: func(_ context.Context, e httpretry.Event) {
			if print != nil {
				print(e)
			}
			// Each request ends in exactly one event with a Reason, whose
			// Attempt is the number of attempts.
			if e.Reason != httpretry.ReasonNone {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.ended[ending{e.Reason, e.Attempt.Number}]++
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	return &http.Client{Transport: transport}
}

// run runs a scenario with one request. It returns an error if the result is
// not as expected.
func (d *demo) run(s scenario) error {
	_, path, _ := strings.Cut(s.request, " ")
	d.server.play(path, s.script)
	var last httpretry.Event
	var early error
	client := d.client(s.base, s.policy, func(e httpretry.Event) {
		d.printEvent(e)
		// There is no lock, since Observe runs on the goroutine of its
		// request, and here is only one.
		last = e
		if e.Reason == httpretry.ReasonNone && e.Wait < e.Asked {
			early = fmt.Errorf("waits %v where the server asks for %v", e.Wait, e.Asked)
		}
	})
	defer client.CloseIdleConnections()
	ctx := context.Background()
	if s.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.timeout)
		defer cancel()
	}
	code, err := d.send(ctx, client, s.request, s.key)
	got := result{code, last.Reason, last.Attempt.Number, d.server.tally(path)}
	if got != s.want {
		return errors.Join(fmt.Errorf("%v (%v); expected: %v (%v)",
			got, got.reason, s.want, s.want.reason), early, err)
	}
	return early
}

// send sends a request, with an idempotency key unless that is empty. It
// returns the status of the response.
func (d *demo) send(ctx context.Context, client *http.Client, request, key string) (int, error) {
	method, path, _ := strings.Cut(request, " ")
	req, err := http.NewRequestWithContext(ctx, method, d.server.URL+path, nil)
	if err != nil {
		return 0, err
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	// A body that is read to its end leaves its connection to the next request.
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func (d *demo) print(format string, args ...any) { fmt.Fprintf(d.out, format, args...) }

func (d *demo) title(text string) {
	d.titles++
	d.print("\n%d. %s\n", d.titles, text)
}

// printEvent prints an attempt and the decision after it.
func (d *demo) printEvent(e httpretry.Event) {
	outcome, decision := e.Status(), "stop: "+e.Reason.String()
	if e.Asked > 0 && e.Response != nil {
		outcome = fmt.Sprintf("%d, asks to wait %v", e.Response.StatusCode, e.Asked)
	}
	switch e.Reason {
	case httpretry.ReasonNone:
		decision = "retry in " + e.Wait.Round(time.Millisecond).String()
	case httpretry.ReasonSuccess:
		decision = "done"
	}
	d.print("%3d  %-17s %-25s %s\n",
		e.Attempt.Number, e.Request.Method+" "+e.Request.URL.Path, outcome, decision)
}

// verdict prints whether a scenario ended as its title says.
func (d *demo) verdict(err error, text string) {
	if err != nil {
		d.failed++
		d.print("  FAIL  %v\n", err)
		return
	}
	d.print("  ok  %s\n", text)
}

// summary prints how often requests ended with each reason, and its hint.
func (d *demo) summary() {
	d.print("\nHow the requests ended, and what would allow a retry\n")
	for reason := httpretry.ReasonNone; !strings.HasPrefix(reason.String(), "Reason("); reason++ {
		var counts []string
		if n := d.ended[ending{reason, 0}]; n > 0 {
			counts = append(counts, fmt.Sprintf("not sent: %d", n))
		}
		for attempts := 1; attempts <= 3; attempts++ {
			if n := d.ended[ending{reason, attempts}]; n > 0 {
				counts = append(counts, fmt.Sprintf("on attempt %d: %d", attempts, n))
			}
		}
		if len(counts) > 0 {
			d.print("  %-21v %s\n", reason, strings.Join(counts, ", "))
			if hint := reason.Hint(); hint != "" {
				d.print("    %s\n", hint)
			}
		}
	}
}
