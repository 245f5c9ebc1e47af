package migration_test

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/policies"
	"github.com/seed421102f4/httpretry/strategies"
)

// batch is a batch of jobs, and a server that is down for a part of it.
type batch struct {
	jobs, workers int
	latency       time.Duration // of each response
	from, to      time.Duration // the outage
	limit         float64       // of requests a second; 0: none
}

// run returns how many jobs succeed, how many requests they need, and when the
// last of them ends. newClient gets the transport that sends the requests.
func (b batch) run(
	t *testing.T, newClient func(http.RoundTripper) *http.Client,
) (done, sends int64, took time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var ok, sent, begun atomic.Int64
		var mu sync.Mutex
		inSecond := map[time.Duration]float64{}
		client := newClient(contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			sent.Add(1)
			since := time.Since(begin)
			mu.Lock()
			inSecond[since/time.Second]++
			overLimit := b.limit > 0 && inSecond[since/time.Second] > b.limit
			mu.Unlock()
			status := http.StatusOK
			if since >= b.from && since < b.to {
				status = http.StatusServiceUnavailable
			} else if overLimit {
				status = http.StatusTooManyRequests
			}
			time.Sleep(b.latency)
			return respond(req, status)
		}))
		var wg sync.WaitGroup
		for range b.workers {
			wg.Go(func() {
				for begun.Add(1) <= int64(b.jobs) {
					resp, err := client.Get("http://api.example.com/")
					if err != nil {
						continue // as of go-retryablehttp after its last attempt
					}
					if assert.NoError(t, resp.Body.Close()) && resp.StatusCode == http.StatusOK {
						ok.Add(1)
					}
				}
			})
		}
		wg.Wait()
		done, sends, took = ok.Load(), sent.Load(), time.Since(begin)
	})
	return done, sends, took
}

// follow returns a function that makes a client with a policy.
func follow(t *testing.T, policy httpretry.Policy) func(http.RoundTripper) *http.Client {
	return func(base http.RoundTripper) *http.Client {
		transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
		return &http.Client{Transport: transport}
	}
}

// docs/choosing.md has a table of these jobs.
func TestJobs(t *testing.T) {
	clients := map[string]func(http.RoundTripper) *http.Client{
		"the default":                      follow(t, httpretry.Policy{}),
		"`MaxAttempts: 5`":                 follow(t, httpretry.Policy{MaxAttempts: 5}),
		"`policies.Background(time.Hour)`": follow(t, policies.Background(time.Hour)),
		"go-retryablehttp": func(base http.RoundTripper) *http.Client {
			client := retryablehttp.NewClient()
			client.HTTPClient.Transport, client.Logger = base, nil
			return client.StandardClient()
		},
	}
	rows := tableAfter(t, "../choosing.md", "| 3,000 jobs")
	require.Len(t, rows, len(clients))
	for _, row := range rows {
		newClient := clients[row[0]]
		require.NotNil(t, newClient, row[0])
		require.Len(t, row, 3, row[0])
		for i, outage := range []time.Duration{10 * time.Second, 2 * time.Minute} {
			const begin = 2 * time.Second
			b := batch{3000, 50, 100 * time.Millisecond, begin, begin + outage, 0}
			done, sends, took := b.run(t, newClient)
			t.Logf("%s, outage of %v: %d done, %d sends, %.0f s", row[0], outage, done, sends,
				took.Seconds())
			want := numbers(t, row[i+1])
			require.Len(t, want, 3, row[i+1])
			// Of the default's jobs, up to 400 meet the end of a short outage, by chance.
			assert.InEpsilon(t, want[0], done, 0.25, "%s: done", row[0])
			assert.InEpsilon(t, want[1], sends, 0.05, "%s: sends", row[0])
			// With Background, the last job ends after 18 to 23 s, by chance.
			assert.InEpsilon(t, want[2], took.Seconds(), 0.2, "%s: seconds", row[0])
		}
	}
}

// docs/choosing.md has a table of the longest waits of a job, each for two
// batches. The second one has to keep to a limit.
func TestWaitsOfJobs(t *testing.T) {
	const second, latency = time.Second, 100 * time.Millisecond
	outage := batch{3000, 50, latency, 2 * second, 122 * second, 0}
	limit := batch{5000, 50, latency, 10 * second, 40 * second, 100}
	rows := tableAfter(t, "../choosing.md", "| longest wait")
	require.Len(t, rows, 3)
	for _, row := range rows {
		require.Len(t, row, 3, row[0])
		policy := policies.Background(time.Hour)
		longest := time.Duration(numbers(t, row[0])[0]) * second
		backoff := strategies.EqualJitter{Base: second, Max: longest}
		assert.Equal(t, strings.Contains(row[0], "Background"),
			assert.ObjectsAreEqual(backoff, policy.Backoff))
		policy.Backoff = backoff
		done, sends, took := outage.run(t, follow(t, policy))
		// In one run with 20 s, the last job ends after 84 to 104 s, by chance.
		const runs = 5
		var tookAtLimit time.Duration // on average
		for range runs {
			done, _, took := limit.run(t, follow(t, policy))
			assert.EqualValues(t, 5000, done)
			tookAtLimit += took / runs
		}
		t.Logf("%v: %d sends more, %.0f s; %.0f s", longest, sends-done, took.Seconds(),
			tookAtLimit.Seconds())
		assert.EqualValues(t, 3000, done)
		want := numbers(t, row[1])
		require.Len(t, want, 2, row[1])
		assert.InEpsilon(t, want[0], sends-done, 0.1, row[1])
		assert.InEpsilon(t, want[1], took.Seconds(), 0.05, row[1])
		assert.InEpsilon(t, numbers(t, row[2])[0], tookAtLimit.Seconds(), 0.1, row[2])
	}
}

// tableAfter returns the cells of the table that begins with a header.
func tableAfter(t *testing.T, file, header string) (rows [][]string) {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "\n"+header)
	require.True(t, found, "%s has no table that begins with %q", file, header)
	for i, line := range strings.Split(table, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), "|")
		switch {
		case i < 2:
			continue
		case !strings.HasPrefix(line, "|"):
			return rows
		}
		for i, cell := range cells {
			cells[i] = strings.TrimSpace(cell)
		}
		rows = append(rows, cells)
	}
	return rows
}

// numbers returns the numbers in a cell, such as "1,000 done, 3.5 s".
func numbers(t *testing.T, cell string) (all []float64) {
	for word := range strings.FieldsSeq(strings.ReplaceAll(cell, ",", "")) {
		if n, err := strconv.ParseFloat(word, 64); err == nil {
			all = append(all, n)
		}
	}
	require.NotEmpty(t, all, fmt.Sprintf("%q has no numbers", cell))
	return all
}
