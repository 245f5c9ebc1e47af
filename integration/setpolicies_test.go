package integration

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// swapped returns a policy of n attempts, each of which says so in a header
// whose name has n in it.
func swapped(n int) httpretry.Policy {
	p := contract.RetryEvery(0)
	p.MaxAttempts = n
	p.IdempotencyHeader = "Key-" + strconv.Itoa(n)
	p.NewIdempotencyKey = func(*http.Request) string { return strconv.Itoa(n) }
	return p
}

// TestSetPoliciesUnderLoad changes the policies 1,000 times per second for ten
// seconds, while 64 clients send requests that always fail with 503. No request
// fails by it, each makes all attempts of one policy, and the memory that is in
// use stays the same.
func TestSetPoliciesUnderLoad(t *testing.T) {
	const clients, duration = 64, 10 * time.Second
	server := contract.NewServer(t, func(w http.ResponseWriter, req *http.Request) {
		for name := range req.Header {
			if n, ok := strings.CutPrefix(name, "Key-"); ok {
				w.Header().Add("Policy", n)
			}
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	var mixed atomic.Int64 // responses to attempts that did not have one policy
	type policies struct{}
	transport := contract.Unchecked(t, httpretry.Config{
		Base: &http.Transport{MaxIdleConnsPerHost: clients}, Policy: swapped(1),
		Observe: func(ctx context.Context, e httpretry.Event) {
			seen := ctx.Value(policies{}).(map[string]int)
			if e.Response == nil || len(e.Response.Header["Policy"]) != 1 {
				mixed.Add(1)
				return
			}
			seen[e.Response.Header.Get("Policy")]++
		},
	})
	send := func() {
		seen := map[string]int{}
		req := contract.Request(t, "POST", server.URL, "text")
		resp, err := transport.RoundTrip(
			req.WithContext(context.WithValue(t.Context(), policies{}, seen)))
		if !assert.NoError(t, err) {
			return
		}
		assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		contract.ReadBody(t, resp)
		if assert.Len(t, seen, 1) {
			for n, attempts := range seen {
				assert.Equal(t, n, strconv.Itoa(attempts))
			}
		}
	}
	var heap []int64
	var requests atomic.Int64
	for range 2 { // the first half is for pools and connections to grow
		var wg sync.WaitGroup
		end := time.Now().Add(duration / 2)
		for range clients {
			wg.Go(func() {
				for time.Now().Before(end) {
					send()
					requests.Add(1)
				}
			})
		}
		ticker := time.NewTicker(time.Millisecond)
		for n := 0; time.Now().Before(end); n++ {
			p := swapped(1 + n%5)
			require.NoError(t,
				transport.SetPolicies(p, map[string]httpretry.Policy{"127.0.0.1": p}))
			<-ticker.C
		}
		ticker.Stop()
		wg.Wait()
		heap = append(heap, contract.HeapInUse())
	}
	transport.CloseIdleConnections()
	assert.Zero(t, mixed.Load())
	assert.Less(t, heap[1]-heap[0], int64(4<<20))
	t.Logf("%d requests", requests.Load())
}
