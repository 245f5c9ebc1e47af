package recipes_test

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// limited waits for the limiter before it sends a request.
type limited struct {
	next    http.RoundTripper
	limiter *rate.Limiter
}

func (l limited) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := l.limiter.Wait(req.Context()); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, httpretry.WithOutcome(err, httpretry.Unprocessed) // nothing was sent
	}
	return l.next.RoundTrip(req)
}

// perHost sends at most n requests to a host at the same time, until their
// bodies are closed.
type perHost struct {
	next  http.RoundTripper
	n     int
	hosts sync.Map // for each host, a channel with room for n
}

func (p *perHost) RoundTrip(req *http.Request) (*http.Response, error) {
	room, _ := p.hosts.LoadOrStore(req.URL.Host, make(chan struct{}, p.n))
	slots := room.(chan struct{})
	select {
	case slots <- struct{}{}:
	case <-req.Context().Done():
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, httpretry.WithOutcome(req.Context().Err(), httpretry.Unprocessed) // nothing was sent
	}
	resp, err := p.next.RoundTrip(req)
	if err != nil {
		<-slots
		return nil, err
	}
	resp.Body = slotBody{resp.Body, sync.OnceFunc(func() { <-slots })}
	return resp, nil
}

type slotBody struct {
	io.ReadCloser
	free func()
}

func (b slotBody) Close() error {
	defer b.free()
	return b.ReadCloser.Close()
}

// TestPerHost sends ten requests to each of two hosts, of which the first one
// fails. It checks that at most two are at one host, and that a request that
// waits for its retry leaves its place to others.
func TestPerHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most, firsts := map[string]int{}, map[string]int{}, 0
		leave := func(host string) {
			mu.Lock()
			defer mu.Unlock()
			now[host]--
		}
		base := roundTripFunc(func(req *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			host := req.URL.Host
			now[host]++
			most[host] = max(most[host], now[host])
			code := http.StatusOK
			if httpretry.Attempt(req.Context()) > 1 {
				assert.Equal(t, 10, firsts, "all first attempts are sent before a retry")
			} else if host == "a.example.com" {
				firsts++
				code = http.StatusServiceUnavailable
			}
			resp := respond(req, code, nil)
			resp.Body = slotBody{http.NoBody, func() { leave(host) }}
			return resp, nil
		})
		client := newClient(t, httpretry.Config{
			Base: &perHost{next: base, n: 2},
			Policy: httpretry.Policy{
				Cooldown: httpretry.CooldownWait, Budget: httpretry.Unlimited{},
				Backoff: strategies.Constant{Wait: time.Minute},
			},
		})
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				req := request(t, "GET", "")
				req.URL.Host = []string{"a.example.com", "b.example.com"}[i%2]
				resp, err := client.Do(req)
				require.NoError(t, err)
				assert.Equal(t, http.StatusOK, resp.StatusCode)
				time.Sleep(time.Second) // the caller reads the body
				require.NoError(t, resp.Body.Close())
			})
		}
		wg.Wait()
		assert.Equal(t, map[string]int{"a.example.com": 2, "b.example.com": 2}, most)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		layer := &perHost{next: base} // no room
		_, err := layer.RoundTrip(request(t, "POST", "data").WithContext(ctx))
		assert.True(t, httpretry.IsUnprocessed(err))
	})
}

// TestLimiter counts the most requests that arrive within a second, if each of
// a hundred needs a retry.
func TestLimiter(t *testing.T) {
	for _, tt := range []struct {
		name     string
		min, max int // in the busiest second
	}{
		{"below", 10, 11},
		{"above", 15, 40},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &script{statuses: []int{http.StatusOK}}
				limiter := rate.NewLimiter(10, 1)
				var base http.RoundTripper = roundTripFunc(func(req *http.Request) (*http.Response, error) {
					resp, err := server.RoundTrip(req)
					if req.Header.Get("Retry-Attempt") == "" {
						return respond(req, http.StatusServiceUnavailable, nil), err
					}
					return resp, err
				})
				if tt.name == "below" {
					base = limited{base, limiter}
				}
				client := newClient(t, httpretry.Config{Base: base})
				if tt.name == "above" {
					client.Transport = limited{client.Transport, limiter}
				}
				ctx := httpretry.WithPolicy(t.Context(), httpretry.Policy{
					Budget: httpretry.Unlimited{}, Backoff: strategies.Constant{Wait: 2 * time.Second},
				})
				var wg sync.WaitGroup
				for range 100 {
					wg.Go(func() {
						assert.Equal(t, http.StatusOK, status(t, client, request(t, "GET", "").WithContext(ctx)))
					})
				}
				wg.Wait()
				assert.Equal(t, 200, server.count())
				assert.GreaterOrEqual(t, busiestSecond(server.sent), tt.min)
				assert.LessOrEqual(t, busiestSecond(server.sent), tt.max)
			})
		})
	}
}

// busiestSecond returns the most requests that arrived within a second.
func busiestSecond(requests []sent) int {
	most := 0
	for i, first := range requests {
		n := i
		for n < len(requests) && requests[n].at < first.at+time.Second {
			n++
		}
		most = max(most, n-i)
	}
	return most
}

// TestLimiterThatTimesOut checks that even a POST is retried, with its body, if
// its AttemptTimeout ends while it waits for the limiter.
func TestLimiterThatTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := play(http.StatusOK)
		limiter := rate.NewLimiter(rate.Every(time.Minute), 1)
		assert.True(t, limiter.Allow())
		client := newClient(t, httpretry.Config{
			Base: limited{server, limiter},
			Policy: httpretry.Policy{
				AttemptTimeout: 10 * time.Second, MaxAttempts: -1, Budget: httpretry.Unlimited{},
				Backoff: strategies.Constant{Wait: 20 * time.Second},
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		assert.Equal(t, http.StatusOK, status(t, client, request(t, "POST", "data").WithContext(ctx)))
		assert.Equal(t, []string{"data"}, server.bodies())
		assert.NotEmpty(t, server.headers("Retry-Attempt")[0])
	})
}
