package recipes_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/retrytest"
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
		failing := play(append(slices.Repeat([]int{503}, 10), 200)...)
		working := play(200)
		client := newClient(t, httpretry.Config{
			Base: &perHost{n: 2, next: hosts{
				"a.example.com": failing.Script, "b.example.com": working.Script}},
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
		require.Equal(t, 20, failing.count())
		for i := range 10 {
			twoInASecond := time.Duration(i/2) * time.Second
			assert.Equal(t, twoInASecond, working.Attempts()[i].At)
			assert.Zero(t, failing.Attempts()[i].At)
			assert.Equal(t, time.Minute+twoInASecond, failing.Attempts()[10+i].At)
		}
	})
}

// TestLimiter counts the requests that arrive within a second, if each of a
// hundred needs a retry.
func TestLimiter(t *testing.T) {
	for name, want := range map[string]float64{"below": 10, "above": 20} {
		contract.Bubble(t, name, func(t *testing.T) {
			server := contract.Play(retrytest.Func(func(req *http.Request) (*http.Response, error) {
				if httpretry.Attempt(req.Context()) == 1 {
					return respond(req, http.StatusServiceUnavailable)
				}
				return respond(req, http.StatusOK)
			}))
			var base http.RoundTripper = server
			limiter := rate.NewLimiter(10, 1)
			if name == "below" {
				base = limited{base, limiter}
			}
			client := newClient(t, httpretry.Config{
				Base: base,
				Policy: httpretry.Policy{
					Budget: httpretry.Unlimited{}, Backoff: strategies.Constant{Wait: 2 * time.Second},
				},
			})
			if name == "above" {
				client.Transport = limited{client.Transport, limiter}
			}
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() {
					assert.Equal(t, http.StatusOK, status(t, client, request(t, "GET", "")))
				})
			}
			wg.Wait()
			assert.Len(t, server.Attempts(), 200)
			inSecond := map[time.Duration]int{}
			for _, r := range server.Attempts() {
				inSecond[r.At/time.Second]++
			}
			for second := range 8 {
				assert.InDelta(t, want, inSecond[time.Duration(2+second)], 1)
			}
		})
	}
}

// TestCanceledWaits checks that a request that is canceled while it waits, such as
// by AttemptTimeout, counts as not sent, and that its body is closed.
func TestCanceledWaits(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, layer := range []http.RoundTripper{limited{limiter: rate.NewLimiter(1, 1)}, &perHost{}} {
		body := contract.Counted("data")
		req := contract.Streamed(t, "POST", "https://api.example.com/", body)
		_, err := layer.RoundTrip(req.WithContext(ctx))
		assert.ErrorIs(t, err, context.Canceled)
		assert.True(t, httpretry.IsUnprocessed(err))
		assert.Equal(t, 1, body.Closes())
	}
}
