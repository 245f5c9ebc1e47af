// Perhost shows one http.Client that treats three hosts in three ways, by the
// policies in [httpretry.Config.Hosts]:
//
//   - api.example.test takes payments: two attempts at most, and every POST
//     gets an idempotency key, so that it can be repeated without being done
//     twice.
//   - search.example.test answers at once or not at all: short attempts, quick
//     retries.
//   - *.cdn.example.test is a set of mirrors: one attempt, since asking the
//     next mirror is better than asking the same one again.
//
// The hosts are three servers on this machine, so it needs no network:
//
//	go run ./examples/perhost
//
// It ends with exit status 0 if the servers saw what the policies promise.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/internal/frame"
	"github.com/seed421102f4/httpretry/strategies"
)

const helpText = `Perhost shows one http.Client with a policy of its own for each of three hosts.

Usage:
  perhost       it has no flags, needs no network and takes a second

Exit status:
  0     each host was treated as its policy says
  1     some host was not
  2     there were arguments
  130   interrupted by Ctrl-C (SIGINT) or SIGTERM
`

var program = frame.Program{Name: "perhost", Help: helpText, Show: show}

func main() { frame.Main(program.Run) }

// policies is what this program is about. Policies do not inherit from one
// another: a field that is not set has its default, in each of them.
func policies() map[string]httpretry.Policy {
	return map[string]httpretry.Policy{
		"api.example.test": {
			MaxAttempts: 2,
			Backoff:     strategies.DecorrelatedV2{Median: 100 * time.Millisecond},
			NewKey:      httpretry.RandomKey,
		},
		"search.example.test": {
			MaxAttempts:    4,
			Backoff:        strategies.FullJitter{Base: 20 * time.Millisecond, Max: 200 * time.Millisecond},
			AttemptTimeout: 400 * time.Millisecond,
		},
		"*.cdn.example.test": {MaxAttempts: 1},
	}
}

// visit is a request to one host, and what is expected of it.
type visit struct {
	method, host, path string
	want               result
}

// result is how a visit went, as seen from both ends.
type result struct {
	status   int
	attempts int
	tally    // of the server
}

// visits returns the requests of this program. Those of one group are
// alternatives: the first that succeeds is enough.
func visits() [][]visit {
	return [][]visit{
		{{http.MethodPost, "api.example.test", "/charge", result{200, 2, tally{requests: 2, charges: 1}}}},
		{{http.MethodGet, "search.example.test", "/?q=retry", result{200, 3, tally{requests: 3}}}},
		{
			{http.MethodGet, "eu.cdn.example.test", "/logo.png", result{503, 1, tally{requests: 1}}},
			{http.MethodGet, "us.cdn.example.test", "/logo.png", result{200, 1, tally{requests: 1}}},
			{http.MethodGet, "ap.cdn.example.test", "/logo.png", result{}}, // never asked
		},
	}
}

// show sends the requests and prints a table of what each host got.
func show(ctx context.Context, stdout io.Writer) error {
	backends, err := startBackends()
	if err != nil {
		return err
	}
	defer backends.stop()

	transport, err := httpretry.New(httpretry.Config{
		Base:  backends.transport(),
		Hosts: policies(),
		// Policy, which is not set here, is for all other hosts.
	})
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()

	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	defer table.Flush()
	fmt.Fprintln(table, "HOST\tREQUEST\tANSWER\tATTEMPTS\tTHE SERVER SAW")
	var problems []error
	for _, alternatives := range visits() {
		for _, v := range alternatives {
			got, err := v.send(ctx, client)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			got.tally = backends.tally(v.host)
			fmt.Fprintf(table, "%s\t%s %s\t%d\t%d\t%v\n", v.host, v.method, v.path, got.status, got.attempts, got.tally)
			if got != v.want {
				problems = append(problems, fmt.Errorf("%s: got %+v, expected %+v (error: %v)", v.host, got, v.want, err))
			}
			if got.status == http.StatusOK {
				break
			}
		}
	}
	return errors.Join(problems...)
}

// send makes the request and returns the client's half of the result.
func (v visit) send(ctx context.Context, client *http.Client) (result, error) {
	req, err := http.NewRequestWithContext(ctx, v.method, "http://"+v.host+v.path, nil)
	if err != nil {
		return result{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return result{}, err
	}
	defer resp.Body.Close()
	// A response knows which attempt it is the answer to.
	return result{status: resp.StatusCode, attempts: httpretry.Attempt(resp.Request.Context())}, nil
}
