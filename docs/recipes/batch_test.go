package recipes_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
)

func newBatchClient(base http.RoundTripper) (*http.Client, error) {
	policy := policies.Background(time.Hour) // for each request
	policy.AttemptTimeout = time.Minute      // for a server that does not answer
	transport, err := httpretry.New(httpretry.Config{Base: base, Policy: policy})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport}, nil
}

// sendAll sends all requests with 50 workers, and calls done for each response,
// whatever its status. It returns the first error.
func sendAll(client *http.Client, jobs []*http.Request, done func(*http.Response) error) error {
	var workers errgroup.Group
	workers.SetLimit(50)
	for _, job := range jobs {
		workers.Go(func() error {
			resp, err := client.Do(job)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			return done(resp)
		})
	}
	return workers.Wait()
}

// TestBatch sends 1,000 requests, each of which takes 100 ms. The server fails
// for the first ten seconds.
func TestBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		client, err := newBatchClient(roundTripFunc(func(req *http.Request) (*http.Response, error) {
			time.Sleep(100 * time.Millisecond)
			if time.Since(start) < 10*time.Second {
				return respond(req, http.StatusServiceUnavailable, nil), nil
			}
			return respond(req, http.StatusOK, nil), nil
		}))
		require.NoError(t, err)
		var jobs []*http.Request
		for range 1000 {
			jobs = append(jobs, request(t, "PUT", "data"))
		}
		var done atomic.Int64
		require.NoError(t, sendAll(client, jobs, func(resp *http.Response) error {
			if resp.StatusCode == http.StatusOK {
				done.Add(1)
			}
			return nil
		}))
		assert.EqualValues(t, 1000, done.Load())
	})
}
