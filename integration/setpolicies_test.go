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

// TestSetPoliciesUnderLoad changes the policies 10,000 times within ten
// seconds, while 64 clients send requests that always fail with 503. No request
// fails by it, each makes all attempts of one policy, and the memory that is in
// use stays the same. On a machine that is too busy for 1,000 changes per
// second, the test takes longer, and makes as many changes.
func TestSetPoliciesUnderLoad(t *testing.T) {
	const clients, halves, swaps = 64, 2, 5000 // in each half
	const pace = 990 * time.Microsecond        // a little faster than 1,000 per second
	server := contract.NewServer(t, func(w http.ResponseWriter, req *http.Request) {
		for name := range req.Header {
			if n, ok := strings.CutPrefix(name, "Key-"); ok {
				w.Header().Add("Policy", n)
			}
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	l := &swapLoad{t: t, url: server.URL}
	l.transport = contract.Unchecked(t, httpretry.Config{
		Base: &http.Transport{MaxIdleConnsPerHost: clients}, Policy: swapped(1),
		Observe: l.observe,
	})
	var heap []int64
	var took time.Duration
	for range halves { // the first is for pools and connections to grow
		var wg sync.WaitGroup
		done := make(chan struct{})
		for range clients {
			wg.Go(func() { l.sendUntil(done) })
		}
		start := time.Now()
		for n := range swaps {
			// If the machine was busy, the next ones follow without a wait.
			time.Sleep(time.Until(start.Add(time.Duration(n) * pace)))
			l.swap(n)
		}
		took += time.Since(start)
		close(done)
		wg.Wait()
		heap = append(heap, contract.HeapInUse())
	}
	l.transport.CloseIdleConnections()
	assert.Zero(t, l.mixed.Load())
	assert.Less(t, heap[1]-heap[0], int64(4<<20))
	assert.EqualValues(t, halves*swaps, l.swaps.Load())
	assert.Positive(t, l.overtaken.Load(), "the policies changed during requests")
	for i := range l.followed {
		assert.Positive(t, l.followed[i].Load(), "requests with %d attempts", i+1)
	}
	t.Logf("%d changes in %v", l.swaps.Load(), took)
}

// swapLoad has the clients of TestSetPoliciesUnderLoad and their counts.
type swapLoad struct {
	t         *testing.T
	url       string
	transport *httpretry.RetryTransport

	swaps     atomic.Int64
	overtaken atomic.Int64    // requests during which the policies changed
	followed  [5]atomic.Int64 // requests, by the number of their attempts less one
	mixed     atomic.Int64    // responses to attempts that did not have one policy
}

// seenPolicies is the key of a map from policies to attempts, in the context of
// a request.
type seenPolicies struct{}

func (l *swapLoad) observe(ctx context.Context, e httpretry.Event) {
	seen := ctx.Value(seenPolicies{}).(map[string]int)
	if e.Response == nil || len(e.Response.Header["Policy"]) != 1 {
		l.mixed.Add(1)
		return
	}
	seen[e.Response.Header.Get("Policy")]++
}

func (l *swapLoad) swap(n int) {
	p := swapped(1 + n%len(l.followed))
	policies := map[string]httpretry.Policy{"127.0.0.1": p}
	require.NoError(l.t, l.transport.SetPolicies(p, policies))
	l.swaps.Add(1)
}

func (l *swapLoad) sendUntil(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		default:
			before := l.swaps.Load()
			l.send()
			if l.swaps.Load() > before {
				l.overtaken.Add(1)
			}
		}
	}
}

func (l *swapLoad) send() {
	seen := map[string]int{}
	req := contract.Request(l.t, "POST", l.url, "text")
	ctx := context.WithValue(l.t.Context(), seenPolicies{}, seen)
	resp, err := l.transport.RoundTrip(req.WithContext(ctx))
	if !assert.NoError(l.t, err) {
		return
	}
	assert.Equal(l.t, http.StatusServiceUnavailable, resp.StatusCode)
	contract.ReadBody(l.t, resp)
	if !assert.Len(l.t, seen, 1) {
		return
	}
	for n, attempts := range seen {
		if assert.Equal(l.t, n, strconv.Itoa(attempts)) {
			l.followed[attempts-1].Add(1)
		}
	}
}
