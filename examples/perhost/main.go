// Perhost shows one http.Client with a policy for each of three hosts, set in
// [httpretry.Config.Policies]:
//
//   - api.example.test takes payments. The key of its policy has a method and a
//     path. A POST to /charge has at most two attempts, and gets an idempotency
//     key, so it may be retried.
//   - search.example.test either answers at once or not at all. Attempts are
//     short, and so are the waits between them.
//   - *.cdn.example.test is a set of mirrors. It does not match
//     cdn.example.test itself. A request has one attempt, since the next mirror
//     is a better choice than the same mirror again.
//
// One server on this machine answers for all hosts, so it needs no network:
//
//	go run ./examples/perhost
//
// It ends with exit status 0 if the server counted the requests that the
// policies allow.
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"text/tabwriter"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

func main() {
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// policies returns the policies that this program shows. They do not inherit
// from one another. In each of them, a field that is not set has its default.
func policies() map[string]httpretry.Policy {
	return map[string]httpretry.Policy{
		"POST api.example.test/charge": {
			MaxAttempts:       2,
			Backoff:           strategies.DecorrelatedV2{Median: 100 * time.Millisecond},
			NewIdempotencyKey: httpretry.RandomKey,
		},
		"search.example.test": {
			MaxAttempts:    4,
			Backoff:        strategies.FullJitter{Base: 20 * time.Millisecond},
			AttemptTimeout: 400 * time.Millisecond,
		},
		"*.cdn.example.test": {MaxAttempts: 1},
	}
}

// visit is a request to one host and its expected result.
type visit struct {
	method, host, path string
	want               result
}

// result has the counts of the client and of the server for one visit.
type result struct {
	status   int
	attempts int
	tally    // the server's
}

// visits returns the requests of this program. The requests of one group are
// alternatives, and the first that succeeds is the last.
func visits() [][]visit {
	return [][]visit{
		{{http.MethodPost, "api.example.test", "/charge",
			result{200, 2, tally{requests: 2, charges: 1}}}},
		{{http.MethodGet, "search.example.test", "/?q=retry", result{200, 3, tally{requests: 3}}}},
		{
			{http.MethodGet, "eu.cdn.example.test", "/logo.png",
				result{503, 1, tally{requests: 1}}},
			{http.MethodGet, "us.cdn.example.test", "/logo.png",
				result{200, 1, tally{requests: 1}}},
			{http.MethodGet, "ap.cdn.example.test", "/logo.png", result{}}, // not reached
		},
	}
}

// run sends the requests and prints a table of the results.
func run(out io.Writer) error {
	server := newServer()
	defer server.Close()

	transport, err := httpretry.New(httpretry.Config{
		Base:     server.transport(),
		Policies: policies(),
		// Policy is for all other hosts. It is not set, so it has the defaults.
	})
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()

	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer table.Flush()
	fmt.Fprintln(table, "HOST\tREQUEST\tSTATUS\tATTEMPTS\tTHE SERVER SAW")
	var problems []error
	for _, alternatives := range visits() {
		for _, v := range alternatives {
			got, err := v.send(client)
			got.tally = server.tally(v.host)
			fmt.Fprintf(table, "%s\t%s %s\t%d\t%d\t%v\n",
				v.host, v.method, v.path, got.status, got.attempts, got.tally)
			if got != v.want {
				problems = append(problems, fmt.Errorf("%s: got %+v, expected %+v (error: %v)",
					v.host, got, v.want, err))
			}
			if got.status == http.StatusOK {
				break
			}
		}
	}
	return errors.Join(problems...)
}

// send sends the request and returns the client's part of the result.
func (v visit) send(client *http.Client) (result, error) {
	req, err := http.NewRequest(v.method, "http://"+v.host+v.path, nil)
	if err != nil {
		return result{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return result{}, err
	}
	defer resp.Body.Close()
	return result{status: resp.StatusCode, attempts: httpretry.ResultOf(resp).Attempts}, nil
}
