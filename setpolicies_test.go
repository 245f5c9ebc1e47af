package httpretry_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// attemptsPolicy allows n attempts, a minute apart.
func attemptsPolicy(n int) httpretry.Policy {
	p := contract.RetryEvery(time.Minute)
	p.MaxAttempts = n
	return p
}

// roundTrips sends a GET and returns the number of its attempts.
func roundTrips(t *testing.T, rt http.RoundTripper, url string) int {
	t.Helper()
	resp := contract.Send(t, rt, contract.Request(t, "GET", url, ""))
	attempts := httpretry.ResultOf(resp).Attempts
	return attempts
}

func TestSetPoliciesAppliesToRequestsThatBeginLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := contract.Play(s503)
		transport := contract.Unchecked(t, httpretry.Config{
			Base: base, Policy: attemptsPolicy(2),
			Policies: map[string]httpretry.Policy{"a.test": attemptsPolicy(4)},
		})
		underWay := make(chan int)
		go func() { underWay <- roundTrips(t, transport, "http://a.test/") }()
		synctest.Wait() // it waits for its second attempt

		require.NoError(t, transport.SetPolicies(attemptsPolicy(3),
			map[string]httpretry.Policy{"b.test": attemptsPolicy(5)}))
		assert.Equal(t, 3, roundTrips(t, transport, "http://a.test/"))
		assert.Equal(t, 5, roundTrips(t, transport, "http://b.test/"))
		assert.Equal(t, 4, <-underWay)

		require.NoError(t, transport.SetPolicies(attemptsPolicy(1), nil))
		assert.Equal(t, 1, roundTrips(t, transport, "http://b.test/"))
		assert.Same(t, base, transport.Unwrap())
	})
}

// The zero RetryTransport accepts policies before its first request.
func TestSetPoliciesOfZeroTransport(t *testing.T) {
	server := contract.NewServer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	var transport httpretry.RetryTransport
	require.Error(t, transport.SetPolicies(httpretry.Policy{MaxElapsed: -1}, nil))
	require.NoError(t, transport.SetPolicies(contract.RetryEvery(0), nil))
	assert.Equal(t, 5, roundTrips(t, &transport, server.URL))
	transport.CloseIdleConnections()
}

func TestSetPoliciesKeepsBudgetsAndCooldowns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := contract.Play(s503, s503, s503, s503, s503, s503, s503, s503,
			contract.Status(429, "Retry-After", "30"), s200)
		policy := contract.RetryEvery(0)
		policy.Budget = nil
		transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
		assert.Equal(t, 5, roundTrips(t, transport, "http://a.test/"))
		require.NoError(t, transport.SetPolicies(policy, nil))
		assert.Equal(t, 2, roundTrips(t, transport, "http://a.test/"), "the Burst is used up")
		policy.MaxAttempts, policy.Cooldown = 1, httpretry.CooldownFail
		require.NoError(t, transport.SetPolicies(policy, nil))
		assert.Equal(t, 1, roundTrips(t, transport, "http://a.test/"))
		assert.Equal(t, 1, roundTrips(t, transport, "http://a.test/"))
		require.NoError(t, transport.SetPolicies(policy,
			map[string]httpretry.Policy{"a.test": policy}))
		_, err := transport.RoundTrip(newGet(t))
		var cooling *httpretry.CooldownError
		require.ErrorAs(t, err, &cooling)
		assert.Len(t, base.Attempts(), 9)
	})
}

func TestSetPoliciesKeepsObserverAndAttemptHeader(t *testing.T) {
	base, record := contract.Play(s503, s200), new(contract.Record)
	transport := contract.Unchecked(t, httpretry.Config{
		Base: base, Observe: record.Observe, AttemptHeader: "X-Try"})
	require.NoError(t, transport.SetPolicies(contract.RetryEvery(0), nil))
	assert.Equal(t, 2, roundTrips(t, transport, "http://a.test/"))
	assert.Len(t, record.Events, 2)
	assert.Equal(t, "1", base.Attempts()[1].Header.Get("X-Try"))
}

// Errors are those of New, with the names of the arguments, and change nothing.
func TestSetPoliciesReportsEverything(t *testing.T) {
	base := contract.Play(s503)
	transport := contract.Unchecked(t,
		httpretry.Config{Base: base, Policy: contract.RetryEvery(0), AttemptHeader: "x-try"})
	err := transport.SetPolicies(
		httpretry.Policy{IdempotencyHeader: "X-Try", MaxElapsed: -1},
		map[string]httpretry.Policy{
			"*":          {},
			"b.test":     {IdempotencyHeader: "x-TRY"},
			"B.test":     {},
			"a.test":     {AttemptTimeout: 30},
			"valid.test": {MaxAttempts: 1},
		})
	require.EqualError(t, err, `httpretry: policy.MaxElapsed: -1ns: want at least 1ms, or 0 for no limit
httpretry: policy.IdempotencyHeader: "X-Try": want another header than Config.AttemptHeader
httpretry: policies["*"]: matches every host: use policy for that
httpretry: policies["a.test"].AttemptTimeout: 30ns: want at least 1ms, or 0 for no timeout
httpretry: policies["b.test"]: means the same as "B.test": want only one of them
httpretry: policies["b.test"].IdempotencyHeader: "X-Try": want another header than Config.AttemptHeader`)
	assert.Equal(t, 5, roundTrips(t, transport, "http://valid.test/"))

	none := contract.Unchecked(t, httpretry.Config{Base: base, AttemptHeader: "-"})
	require.NoError(t, none.SetPolicies(httpretry.Policy{IdempotencyHeader: "Retry-Attempt"}, nil))
}

// A body that breaks off is resumed as the policy of its request says.
func TestSetPoliciesDoesNotConcernResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin(300<<10, 1000, 70<<10, -1)
		policy := contract.RetryEvery(time.Second)
		policy.Resume = true
		transport := contract.Unchecked(t, httpretry.Config{Base: o, Policy: policy})
		resp, err := transport.RoundTrip(newGet(t))
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, transport.SetPolicies(attemptsPolicy(1), nil))
			_, err = io.CopyN(io.Discard, resp.Body, 100<<10)
			require.NoError(t, err)
		}
		require.NoError(t, resp.Body.Close())
		attempts := httpretry.ResultOf(resp).Attempts
		assert.Equal(t, 3, attempts)
	})
}

// numberedPolicy makes n attempts of each request, all with the same header,
// whose name has n in it.
func numberedPolicy(n int) httpretry.Policy {
	p := contract.RetryEvery(0)
	p.MaxAttempts = n
	p.IdempotencyHeader = "Key-" + strconv.Itoa(n)
	p.NewIdempotencyKey = func(*http.Request) string { return strconv.Itoa(n) }
	return p
}

// A request follows one policy from start to end, however often the policies
// change. Changes leave nothing behind.
func TestSetPoliciesBelowClients(t *testing.T) {
	const clients, requests, most = 64, 40, 5
	type seen struct{}
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		n := 0
		for i := 1; i <= most; i++ {
			if req.Header.Get("Key-"+strconv.Itoa(i)) != "" {
				n = n*10 + i
			}
		}
		all := req.Context().Value(seen{}).(*[]int)
		*all = append(*all, n)
		return &http.Response{
			StatusCode: 503, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
	})
	var events atomic.Int64
	transport := contract.Unchecked(t, httpretry.Config{
		Base:    base,
		Policy:  numberedPolicy(1),
		Observe: func(context.Context, httpretry.Event) { events.Add(1) },
	})
	set := func(n int) {
		p := numberedPolicy(1 + n%most)
		assert.NoError(t, transport.SetPolicies(p, map[string]httpretry.Policy{"*.a.test": p}))
	}
	send := func(n int) {
		var attempts []int
		req := contract.Request(t, "POST", fmt.Sprintf("http://%d.a.test/", n%16), "")
		ctx := context.WithValue(t.Context(), seen{}, &attempts)
		resp, err := transport.RoundTrip(req.WithContext(ctx))
		if !assert.NoError(t, err) {
			return
		}
		assert.Equal(t, 503, resp.StatusCode)
		for _, n := range attempts {
			assert.Equal(t, len(attempts), n, "%v", attempts)
		}
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	swapped := make(chan int)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				swapped <- n
				return
			default:
				set(n)
			}
		}
	}()
	for range clients {
		wg.Go(func() {
			for n := range requests {
				send(n)
			}
		})
	}
	wg.Wait()
	close(done)
	assert.Greater(t, <-swapped, 100)
	assert.GreaterOrEqual(t, events.Load(), int64(clients*requests))

	before := contract.HeapInUse()
	for n := range 500 {
		set(n)
		send(n)
	}
	assert.Less(t, contract.HeapInUse()-before, int64(1<<20))
}

// A download that lasts keeps its policy, and not the state of all hosts that
// the policies had when it began.
func TestDownloadsDoNotKeepOldPolicies(t *testing.T) {
	const downloads = 200
	o := newOrigin(1000)
	policy := contract.RetryEvery(0)
	policy.Resume = true
	policy.Budget = nil
	transport := contract.Unchecked(t, httpretry.Config{Base: o, Policy: policy})
	bodies := make([]io.Closer, downloads)
	before := contract.HeapInUse()
	for i := range bodies {
		require.NoError(t, transport.SetPolicies(policy, nil))
		resp, err := transport.RoundTrip(newGet(t))
		require.NoError(t, err)
		bodies[i] = resp.Body
	}
	each := (contract.HeapInUse() - before) / downloads
	assert.Less(t, each, int64(8<<10), "a table of hosts has more")
	for _, body := range bodies {
		require.NoError(t, body.Close())
	}
}
