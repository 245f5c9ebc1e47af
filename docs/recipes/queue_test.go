package recipes_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/policies"
	"github.com/seed421102f4/httpretry/retrytest"
	"github.com/seed421102f4/httpretry/strategies"
)

// charge is a job of a queue.
type charge struct{ url, id string }

// chargeAll sends the charges. It returns those that no server has processed, to be
// queued again, and those that a server may have processed, about which somebody
// has to decide.
func chargeAll(client *http.Client, charges []charge) (again, unknown []charge) {
	for _, c := range charges {
		resp, err := client.Post(c.url, "text/plain", strings.NewReader(c.id))
		unprocessed := httpretry.IsUnprocessed(err)
		if err == nil {
			unprocessed = httpretry.ResultOf(resp).Unprocessed
			_ = resp.Body.Close() // its status is enough
		}
		switch {
		case unprocessed:
			again = append(again, c)
		case err != nil || resp.StatusCode >= 300:
			unknown = append(unknown, c)
		}
	}
	return again, unknown
}

// A charge that was never processed is queued again, and no other. None is lost,
// and none is made twice.
func TestQueue(t *testing.T) {
	var mu sync.Mutex
	made := map[string]int{}
	base, srv := contract.Serve(t, contract.HTTP2, func(w http.ResponseWriter, r *http.Request) {
		id, err := io.ReadAll(r.Body)
		if r.URL.Path == "/busy" || err != nil {
			w.WriteHeader(http.StatusServiceUnavailable) // before it does anything
			return
		}
		mu.Lock()
		made[string(id)]++
		mu.Unlock()
		if r.URL.Path == "/reset" {
			panic(http.ErrAbortHandler)
		}
	})
	leaving := faults.HTTP2(t, func(s faults.Stream) { s.GoAway(0, faults.NoError) })
	// The API answers with 503 before it has done anything.
	policy := policies.Statuses(httpretry.Policy{Backoff: strategies.Constant{}}, httpretry.Unprocessed, 503)
	client := newClient(t, httpretry.Config{Base: base, Policy: policy})

	urls := []string{
		srv.URL, srv.URL + "/busy", srv.URL + "/reset", "http://" + faults.Refused(t)}
	charges := []charge{{leaving.URL(), "the first charge"}}
	for i := range 20 {
		charges = append(charges, charge{urls[i%len(urls)], fmt.Sprintf("charge %d", i)})
	}
	again, unknown := chargeAll(client, charges)
	assert.Len(t, again, 11)
	assert.Len(t, unknown, 5) // of /reset
	for i := range again {
		again[i].url = srv.URL // the faults are over
	}
	again, more := chargeAll(client, again)
	assert.Empty(t, again)
	assert.Empty(t, more)
	assert.Len(t, made, len(charges))
	for id, n := range made {
		assert.Equal(t, 1, n, id)
	}
}

// pauseWithoutBudget waits if the request that ended with resp or err got no retry
// because the budget of its host is used up.
func pauseWithoutBudget(resp *http.Response, err error, pause time.Duration) {
	failed, ok := errors.AsType[*httpretry.Error](err)
	if ok && failed.Reason == httpretry.ReasonBudget ||
		httpretry.ResultOf(resp).Reason == httpretry.ReasonBudget {
		time.Sleep(pause)
	}
}

// Only a request that the budget has refused a retry makes the worker pause,
// whether it ended with a response or with an error.
func TestWorker(t *testing.T) {
	used := &httpretry.HostBudget{Burst: -1}
	for name, tt := range map[string]struct {
		answer contract.Step
		budget httpretry.Budget
		pause  time.Duration
	}{
		"503":              {retrytest.Status(503), used, time.Second},
		"error":            {retrytest.Reset(), used, time.Second},
		"503, with budget": {retrytest.Status(503), nil, 0},
		"200":              {retrytest.Status(200), used, 0},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			client := newClient(t, httpretry.Config{
				Base: contract.Play(tt.answer), Policy: httpretry.Policy{Budget: tt.budget}})
			resp, err := client.Do(request(t, "GET", ""))
			assert.Equal(t, tt.answer.Err != nil, err != nil)
			if err == nil {
				require.NoError(t, resp.Body.Close())
			}
			start := time.Now()
			pauseWithoutBudget(resp, err, time.Second)
			assert.Equal(t, tt.pause, time.Since(start))
		})
	}
}
