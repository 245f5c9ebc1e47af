package test

import (
	"cmp"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/policies"
)

// The tests in this file are about backoffs of ten seconds or more of requests
// without a limit of attempts. A success of another request to the host ends
// one of them.

// retryAlways returns a policy with the same wait between attempts, and no
// limit of their number.
func retryAlways(wait time.Duration) httpretry.Policy {
	policy := contract.RetryEvery(wait)
	policy.MaxAttempts = -1
	return policy
}

// answersAfter is a base that needs a time for each response, whose status
// depends on the request.
type answersAfter struct {
	latency time.Duration
	status  func(*http.Request) (status int, header string) // header: of Retry-After
}

func (a answersAfter) RoundTrip(req *http.Request) (*http.Response, error) {
	status, retryAfter := a.status(req)
	time.Sleep(a.latency)
	header := http.Header{}
	if retryAfter != "" {
		header.Set("Retry-After", retryAfter)
	}
	return &http.Response{StatusCode: status, ProtoMajor: 1, Header: header, Body: http.NoBody,
		Request: req}, nil
}

// A request to /waits fails at first. Another one follows, whose result may end
// the wait of the first. The wait would be a minute.
func TestSuccessEndsLongBackoff(t *testing.T) {
	const wait = time.Minute
	for _, tt := range []struct {
		name        string
		url, key    string        // of the other request
		at          time.Duration // since the first failure: when the other request is answered
		status      int           // of that answer
		retryAfter  string        // of the first response
		wait        time.Duration // 0: a minute
		attempts    int           // 0: no limit
		least, most time.Duration // between the attempts of the first request
	}{
		{name: "a success", at: 20 * time.Second, status: 200,
			least: 20 * time.Second, most: 30 * time.Second},
		{name: "a redirect", at: 20 * time.Second, status: 302,
			least: 20 * time.Second, most: 30 * time.Second},
		{name: "shortly before the end", at: 59 * time.Second, status: 200,
			least: 59 * time.Second, most: wait},
		{name: "another failure", at: 20 * time.Second, status: 503, least: wait, most: wait},
		{name: "an error of the caller", at: 20 * time.Second, status: 404,
			least: wait, most: wait},
		{name: "sent before the failure", at: time.Second / 2, status: 200,
			least: wait, most: wait},
		{name: "another host", url: "http://b.test/other", at: 20 * time.Second, status: 200,
			least: wait, most: wait},
		{name: "another key", key: "2", at: 20 * time.Second, status: 200,
			least: wait, most: wait},
		{name: "a short wait", at: 5 * time.Second, status: 200, wait: 10*time.Second - 1,
			least: 10*time.Second - 1, most: 10*time.Second - 1},
		{name: "the shortest long wait", at: 5 * time.Second, status: 200, wait: 10 * time.Second,
			least: 5 * time.Second, most: 10*time.Second - 1},
		// The retry also waits for a jitter.
		{name: "Retry-After", at: 20 * time.Second, status: 200, retryAfter: "45",
			least: wait, most: 2 * wait},
		{name: "a short Retry-After", at: 20 * time.Second, status: 200, retryAfter: "1",
			least: 20 * time.Second, most: 30 * time.Second},
		{name: "Retry-After and a failure", at: 20 * time.Second, status: 503, retryAfter: "30",
			least: wait, most: 80 * time.Second},
		{name: "a limit of attempts", at: 20 * time.Second, status: 200, attempts: 1000,
			least: wait, most: wait},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent []time.Time
				base := answersAfter{time.Second, func(req *http.Request) (int, string) {
					if req.URL.Path != "/waits" {
						return tt.status, ""
					}
					if sent = append(sent, time.Now()); len(sent) == 1 {
						return 503, tt.retryAfter
					}
					return 200, ""
				}}
				policy := retryAlways(cmp.Or(tt.wait, wait))
				policy.MaxAttempts = cmp.Or(tt.attempts, -1)
				policy.CooldownKey = func(req *http.Request) string { return req.Header.Get("Key") }
				transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
				url := tt.url
				if url == "" {
					url = "http://a.test/other"
				}
				var wg sync.WaitGroup
				wg.Go(func() {
					time.Sleep(tt.at) // and each attempt takes a second
					req := contract.Request(t, "GET", url, "")
					req.Header.Set("Key", tt.key)
					req = req.WithContext(httpretry.WithoutRetries(req.Context()))
					resp, err := transport.RoundTrip(req)
					if assert.NoError(t, err) {
						contract.ReadBody(t, resp)
					}
				})
				contract.Send(t, transport, contract.Request(t, "GET", "http://a.test/waits", ""))
				wg.Wait()
				require.Len(t, sent, 2)
				got := sent[1].Sub(sent[0]) - time.Second
				assert.GreaterOrEqual(t, got, tt.least)
				assert.LessOrEqual(t, got, tt.most)
			})
		})
	}
}

// A request that fails while others succeed waits as long as its policy says,
// but for one wait.
func TestSuccessEndsOneBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []time.Time
		base := answersAfter{0, func(req *http.Request) (int, string) {
			if req.URL.Path != "/waits" {
				return 200, ""
			}
			if sent = append(sent, time.Now()); len(sent) < 5 {
				return 503, ""
			}
			return 200, ""
		}}
		transport := contract.New(t,
			httpretry.Config{Base: base, Policy: retryAlways(time.Minute)})
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Second):
				}
				resp, err := transport.RoundTrip(contract.Request(t, "GET", "http://a.test/", ""))
				if assert.NoError(t, err) {
					contract.ReadBody(t, resp)
				}
			}
		})
		contract.Send(t, transport, contract.Request(t, "GET", "http://a.test/waits", ""))
		close(stop)
		wg.Wait()
		require.Len(t, sent, 5)
		assert.LessOrEqual(t, sent[1].Sub(sent[0]), 11*time.Second)
		for i := 2; i < len(sent); i++ {
			assert.Equal(t, time.Minute, sent[i].Sub(sent[i-1]))
		}
	})
}

// After an outage, requests with long backoffs must not return together, and
// flood a host that has just come up. Each success ends one backoff. Without
// that, 67 of these requests would return per second, for a minute.
func TestWokenRetriesAreFew(t *testing.T) {
	const requests, outage = 3000, 5 * time.Minute
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var mu sync.Mutex
		perSecond := map[int]int{}
		base := answersAfter{0, func(*http.Request) (int, string) {
			since := time.Since(begin) - outage
			if since < 0 {
				return 503, ""
			}
			mu.Lock()
			defer mu.Unlock()
			perSecond[int(since/time.Second)]++
			return 200, ""
		}}
		transport := contract.New(t,
			httpretry.Config{Base: base, Policy: policies.Background(time.Hour)})
		var wg sync.WaitGroup
		for range requests {
			wg.Go(func() {
				resp, err := transport.RoundTrip(contract.Request(t, "GET", "http://a.test/", ""))
				if assert.NoError(t, err) {
					contract.ReadBody(t, resp)
				}
			})
		}
		wg.Wait()
		most := 0
		for _, n := range perSecond {
			most = max(most, n)
		}
		t.Logf("%v, at most %d in a second", time.Since(begin)-outage, most)
		assert.LessOrEqual(t, most, 3*67)
		assert.LessOrEqual(t, time.Since(begin)-outage, 45*time.Second)
	})
}

// The host asks for a long pause after a success has woken a request. The
// request then waits as long as it would have without the success, and not for
// longer than MaxRetryAfter.
func TestWokenRetryAwaitsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers atomic.Int32
		base := answersAfter{0, func(req *http.Request) (int, string) {
			switch {
			case req.URL.Path == "/limited":
				return 429, "65"
			case req.URL.Path == "/waits" && answers.Add(1) == 1:
				return 503, ""
			}
			return 200, ""
		}}
		transport := contract.New(t,
			httpretry.Config{Base: base, Policy: retryAlways(time.Minute)})
		begin := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			resp, err := transport.RoundTrip(contract.Request(t, "GET", "http://a.test/waits", ""))
			if assert.NoError(t, err) {
				contract.ReadBody(t, resp)
			}
		})
		time.Sleep(5 * time.Second)
		for _, path := range []string{"/success", "/limited"} {
			req := contract.Request(t, "GET", "http://a.test"+path, "")
			contract.Send(t, transport, req.WithContext(httpretry.WithoutRetries(req.Context())))
		}
		wg.Wait()
		assert.GreaterOrEqual(t, time.Since(begin), 70*time.Second)
	})
}

// After an outage of two minutes, a batch need not wait for the last backoff of
// each worker, which is up to a minute.
func TestBatchAfterOutage(t *testing.T) {
	const jobs, workers, outage = 3000, 50, 120 * time.Second
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var sent atomic.Int64
		base := answersAfter{20 * time.Millisecond, func(*http.Request) (int, string) {
			sent.Add(1)
			if time.Since(begin) < outage {
				return 503, ""
			}
			return 200, ""
		}}
		transport := contract.New(t,
			httpretry.Config{Base: base, Policy: policies.Background(time.Hour)})
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for range jobs / workers {
					resp, err := transport.RoundTrip(
						contract.Request(t, "GET", "http://a.test/", ""))
					if assert.NoError(t, err) {
						assert.Equal(t, 200, resp.StatusCode)
						contract.ReadBody(t, resp)
					}
				}
			})
		}
		wg.Wait()
		took := time.Since(begin)
		t.Logf("%v, %d sends", took, sent.Load())
		assert.LessOrEqual(t, took, 140*time.Second)
		// The backoffs in the outage are 0.5, 1, 2, 4, 8, 16, 30 and 30 s at
		// least.
		assert.LessOrEqual(t, sent.Load(), int64(jobs+10*workers))
	})
}

// A success ends a long backoff, however many other hosts have sleeping
// requests.
func TestSuccessEndsBackoffsOfManyHosts(t *testing.T) {
	const hosts = 1100
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		base := answersAfter{0, func(*http.Request) (int, string) {
			if up.Load() {
				return 200, ""
			}
			return 503, ""
		}}
		// The checks would keep too much in memory.
		transport := contract.Unchecked(t,
			httpretry.Config{Base: base, Policy: retryAlways(time.Hour)})
		get := func(host int) {
			url := fmt.Sprintf("http://h%d.test/", host)
			resp, err := transport.RoundTrip(contract.Request(t, "GET", url, ""))
			if assert.NoError(t, err) {
				contract.ReadBody(t, resp)
			}
		}
		var wg sync.WaitGroup
		for host := range hosts {
			wg.Go(func() { get(host) })
		}
		synctest.Wait()
		up.Store(true)
		begin := time.Now()
		for host := range hosts {
			get(host)
		}
		wg.Wait()
		assert.LessOrEqual(t, time.Since(begin), 10*time.Second)
	})
}

// Hazard K4: a panic in CooldownKey before a long backoff reaches the caller.
// The retry is not charged, and no request counts as sleeping or waiting.
func TestCooldownKeyPanicsBeforeLongBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var budget httpretry.HostBudget
		policy := retryAlways(time.Minute)
		policy.Budget = &budget
		policy.CooldownKey = func(*http.Request) string { panic("boom") }
		base := answersAfter{0, func(req *http.Request) (int, string) {
			if req.URL.Path == "/waits" {
				return 503, ""
			}
			return 200, ""
		}}
		transport, err := httpretry.New(httpretry.Config{Base: base, Policy: policy})
		require.NoError(t, err)
		body := contract.Counted("text")
		assert.PanicsWithValue(t, "boom", func() {
			_, _ = transport.RoundTrip(
				contract.Streamed(t, "PUT", "http://a.test/waits", body))
		})
		assert.Equal(t, 1, body.Closes())
		assert.Equal(t, 5, contract.Balance(&budget, "http://a.test"))
		// If a request slept, CooldownKey would be called, and panic.
		contract.Send(t, transport, contract.Request(t, "GET", "http://a.test/", ""))
		assert.Zero(t, transport.Origins()[0].Waiting)
	})
}

// A wait that has ended leaves nothing in the transport that a success in
// another bubble of testing/synctest would close.
func TestLongBackoffLeavesNothing(t *testing.T) {
	var status atomic.Int64
	status.Store(503)
	base := answersAfter{0, func(*http.Request) (int, string) { return int(status.Load()), "" }}
	transport, err := httpretry.New(
		httpretry.Config{Base: base, Policy: retryAlways(time.Minute)})
	require.NoError(t, err)
	send := func(t *testing.T) {
		contract.Send(t, transport, contract.Request(t, "GET", "http://a.test/", ""))
	}
	synctest.Test(t, func(t *testing.T) {
		time.AfterFunc(time.Second, func() { status.Store(200) })
		send(t)
	})
	synctest.Test(t, func(t *testing.T) {
		status.Store(503)
		var wg sync.WaitGroup
		wg.Go(func() { send(t) })
		synctest.Wait()
		status.Store(200)
		send(t)
		wg.Wait()
	})
}
