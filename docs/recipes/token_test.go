package recipes_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sync/singleflight"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// bearer adds a token to each attempt. After a 401, it sends the attempt once
// more, with another token.
type bearer struct {
	next  http.RoundTripper
	fetch func() (string, error) // gets a token, with a timeout of its own

	token   atomic.Value // a string
	fetches singleflight.Group
}

func (b *bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := b.other(req.Context(), "")
	if err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	resp, err := b.send(req, token)
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		return resp, err
	}

	again := req.Clone(req.Context())
	if req.Body != nil && req.Body != http.NoBody {
		if req.GetBody == nil {
			return resp, nil // the body is used up
		}
		if again.Body, err = req.GetBody(); err != nil {
			return resp, nil
		}
	}
	if token, err = b.other(req.Context(), token); err != nil {
		if again.Body != nil {
			again.Body.Close()
		}
		return resp, nil
	}
	resp.Body.Close()
	return b.send(again, token)
}

func (b *bearer) send(req *http.Request, token string) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+token)
	return b.next.RoundTrip(req)
}

// other returns a token that is not rejected. All requests with the same
// rejected token share one fetch.
func (b *bearer) other(ctx context.Context, rejected string) (string, error) {
	if token, _ := b.token.Load().(string); token != rejected {
		return token, nil
	}
	fetched := b.fetches.DoChan(rejected, func() (any, error) {
		if token, _ := b.token.Load().(string); token != rejected {
			return token, nil // by a fetch that has just ended
		}
		token, err := b.fetch()
		if err != nil {
			return "", httpretry.WithOutcome(err, httpretry.Final) // fetch has retried
		}
		b.token.Store(token)
		return token, nil
	})
	select {
	case result := <-fetched:
		return result.Val.(string), result.Err
	case <-ctx.Done(): // nothing was sent
		return "", httpretry.WithOutcome(ctx.Err(), httpretry.Unprocessed)
	}
}

// issuer makes tokens. A server accepts only the latest.
type issuer struct {
	count atomic.Int64
	err   error
}

func (i *issuer) fetch() (string, error) { return fmt.Sprint("token-", i.count.Add(1)), i.err }

// expire makes the server reject the tokens that were fetched.
func (i *issuer) expire() { i.count.Add(1) }

// answer returns the status for a request with its token.
func (i *issuer) answer(req *http.Request) int {
	if req.Header.Get("Authorization") == fmt.Sprint("Bearer token-", i.count.Load()) {
		return http.StatusOK
	}
	return http.StatusUnauthorized
}

// TestToken sends a POST without an idempotency key, whose token has expired,
// over HTTP/1 and HTTP/2.
func TestToken(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		tokens := &issuer{}
		var got []string
		base, srv := contract.Serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			got = append(got, fmt.Sprintf("%q %d", body, tokens.answer(r)))
			w.WriteHeader(tokens.answer(r))
		})
		transport := contract.With(t, &bearer{next: base, fetch: tokens.fetch}, httpretry.Policy{})
		for _, body := range []string{"first", "second", ""} {
			resp := contract.Send(t, transport, contract.Request(t, "POST", srv.URL, body))
			assert.Equal(t, http.StatusOK, resp.StatusCode)
			assert.Equal(t, 1, httpretry.ResultOf(resp).Attempts, "the transport does not retry a 401")
			tokens.expire()
		}
		assert.Equal(t, []string{
			`"first" 200`, `"second" 401`, `"second" 200`, `"" 401`, `"" 200`}, got)
	})
}

// TestTokenIsFetchedOnce sends many requests at once with a token that has
// expired.
func TestTokenIsFetchedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens, fetches := &issuer{}, 0
		client := newClient(t, httpretry.Config{Base: &bearer{
			next: roundTripFunc(func(req *http.Request) (*http.Response, error) {
				time.Sleep(10 * time.Millisecond)
				return respond(req, tokens.answer(req))
			}),
			fetch: func() (string, error) {
				fetches++ // not by two goroutines at once
				time.Sleep(time.Second)
				return tokens.fetch()
			},
		}})
		for want := 1; want <= 2; want++ {
			var wg sync.WaitGroup
			for range 50 {
				wg.Go(func() {
					assert.Equal(t, http.StatusOK, status(t, client, request(t, "POST", "data")))
				})
			}
			wg.Wait()
			assert.Equal(t, want, fetches)
			tokens.expire()
		}
	})
}

// TestTokenWithoutEnd checks that a 401 is sent again only once, that a failure
// of the token endpoint ends the request, and that a canceled request does not
// wait for a token.
func TestTokenWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		with := func(server script, fetch func() (string, error)) *http.Client {
			return newClient(t, httpretry.Config{Base: &bearer{next: server, fetch: fetch}})
		}
		server := play(http.StatusUnauthorized)
		client := with(server, new(issuer).fetch)
		assert.Equal(t, http.StatusUnauthorized, status(t, client, request(t, "GET", "")))
		assert.Equal(t, []string{"Bearer token-1", "Bearer token-2"}, server.headers("Authorization"))

		// A body without GetBody cannot be sent again.
		server = play(http.StatusUnauthorized)
		client = with(server, new(issuer).fetch)
		req := contract.Streamed(t, "PUT", "https://api.example.com/", contract.Counted("data"))
		assert.Equal(t, http.StatusUnauthorized, status(t, client, req))
		assert.Equal(t, []string{"data"}, server.bodies())

		server, refused := play(http.StatusOK), &issuer{err: errors.New("invalid_grant")}
		_, err := with(server, refused.fetch).Do(request(t, "PUT", "data"))
		assert.ErrorContains(t, err, "invalid_grant")
		assert.EqualValues(t, 1, refused.count.Load())
		assert.Zero(t, server.count())

		client = with(server, func() (string, error) {
			time.Sleep(time.Hour)
			return "late", nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err = client.Do(request(t, "GET", "").WithContext(ctx))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, time.Second, time.Since(start))
		time.Sleep(time.Hour) // until the fetch has ended
	})
}

// An attempt may time out while its token is fetched. Nothing was sent, so even
// a POST is retried, with the token of the same fetch.
func TestTokenThatTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fetches := 0
		base := &bearer{next: play(http.StatusOK), fetch: func() (string, error) {
			fetches++
			time.Sleep(1500 * time.Millisecond)
			return "token", nil
		}}
		client := newClient(t, httpretry.Config{Base: base, Policy: httpretry.Policy{AttemptTimeout: time.Second}})
		assert.Equal(t, http.StatusOK, status(t, client, request(t, "POST", "text")))
		assert.Equal(t, 1, fetches)
	})
}
