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
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
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

// visits returns the requests of this program, and the line that each has to
// print: the status, the attempts, and what the server saw. The requests of one
// group are alternatives, and the first that succeeds is the last.
func visits() [][][2]string {
	return [][][2]string{
		{{"POST api.example.test/charge", "200\t2\trequests: 2, charges: 1"}},
		{{"GET search.example.test/?q=retry", "200\t3\trequests: 3"}},
		{
			{"GET eu.cdn.example.test/logo.png", "503\t1\trequests: 1"},
			{"GET us.cdn.example.test/logo.png", "200\t1\trequests: 1"},
			{"GET ap.cdn.example.test/logo.png", "not reached"},
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
	fmt.Fprintln(table, "REQUEST\tSTATUS\tATTEMPTS\tTHE SERVER SAW")
	for _, alternatives := range visits() {
		for _, v := range alternatives {
			method, url, _ := strings.Cut(v[0], " ")
			req, err := http.NewRequest(method, "http://"+url, nil)
			if err != nil {
				return err
			}
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			_ = resp.Body.Close()
			got := fmt.Sprintf("%d\t%d\t%s", resp.StatusCode, httpretry.ResultOf(resp).Attempts, server.saw(req.Host))
			fmt.Fprintf(table, "%s\t%s\n", v[0], got)
			if got != v[1] {
				return fmt.Errorf("%s: got %q, expected %q", v[0], got, v[1])
			}
			if resp.StatusCode == http.StatusOK {
				break
			}
		}
	}
	return nil
}
