package httpretry_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// The longest first waits of the default backoff.
const (
	shortWait = 700 * time.Millisecond
	longWait  = 2100 * time.Millisecond // while the host fails
)

// send plays steps for a request to a.test.
func send(t *testing.T, transport http.RoundTripper, method string, steps ...contract.Step) {
	t.Helper()
	req := contract.Request(t, method, "http://a.test/", "")
	contract.Send(t, transport, contract.Play(steps...).For(req))
}

// requireLongest calls wait many times and checks the longest result.
func requireLongest(t *testing.T, want time.Duration, wait func(t *testing.T) time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		longest := time.Duration(0)
		for range 200 {
			longest = max(longest, wait(t))
		}
		assert.LessOrEqual(t, longest, want)
		assert.Greater(t, longest, want/2)
	})
}

// The default backoff is longer while the host has not succeeded since an
// earlier failure, of any request.
func TestBackoffWhileTheHostFails(t *testing.T) {
	watched := httpretry.Policy{AttemptTimeout: time.Hour} // no request is plain
	type transport = *httpretry.RetryTransport
	for name, tt := range map[string]struct {
		want   time.Duration
		before func(t *testing.T, transport transport)
	}{
		"no failure": {shortWait, func(*testing.T, transport) {}},
		"a failure that is not retried": {longWait, func(t *testing.T, transport transport) {
			send(t, transport, "POST", s503)
		}},
		"an error": {longWait, func(t *testing.T, transport transport) {
			req := contract.Request(t, "POST", "http://a.test/", "")
			_, err := transport.RoundTrip(contract.Play(reset).For(req))
			require.Error(t, err)
		}},
		"a success": {shortWait, func(t *testing.T, transport transport) {
			send(t, transport, "POST", s503)
			send(t, transport, "GET", s200)
		}},
		"a success that is not 2xx": {shortWait, func(t *testing.T, transport transport) {
			send(t, transport, "POST", s503)
			send(t, transport, "GET", s404)
		}},
		"a retry that succeeds": {shortWait, func(t *testing.T, transport transport) {
			send(t, transport, "GET", s503, s200)
		}},
		"a retry that fails": {longWait, func(t *testing.T, transport transport) {
			send(t, transport, "GET", s200)
			send(t, transport, "GET", s503, s503, s503)
		}},
		"a failure of another host": {shortWait, func(t *testing.T, transport transport) {
			req := contract.Request(t, "POST", "http://b.test/", "")
			contract.Send(t, transport, contract.Play(s503).For(req))
		}},
		"a cancel": {shortWait, func(t *testing.T, transport transport) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			_, err := transport.RoundTrip(
				contract.Play(contract.Step{Takes: time.Hour}).For(newGet(t).WithContext(ctx)))
			require.Error(t, err)
		}},
		"a body that fails": {shortWait, func(t *testing.T, transport transport) {
			body := io.NopCloser(iotest.ErrReader(errors.New("no disk")))
			req := contract.Streamed(t, "POST", "http://a.test/", body)
			_, err := transport.RoundTrip(contract.Play(s503).For(req))
			require.Error(t, err)
		}},
		"a failure before SetPolicies": {shortWait, func(t *testing.T, transport transport) {
			send(t, transport, "POST", s503)
			require.NoError(t, transport.SetPolicies(httpretry.Policy{}, nil))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, policy := range []httpretry.Policy{{}, watched} {
				requireLongest(t, tt.want, func(t *testing.T) time.Duration {
					transport := contract.Unchecked(t, httpretry.Config{
						Base: contract.Scripts{}, Policy: policy})
					tt.before(t, transport)
					script := contract.Play(s503, s200)
					contract.Send(t, transport, script.For(newGet(t)))
					return script.Waits()[0]
				})
			}
		})
	}
}

// The two backoffs of a request have sequences of their own.
func TestBackoffAfterAnotherRequestSucceeds(t *testing.T) {
	requireLongest(t, shortWait, func(t *testing.T) time.Duration {
		transport := contract.Unchecked(t, httpretry.Config{Base: contract.Scripts{}})
		script := contract.Play(s429, s503, s200)
		done := make(chan struct{})
		go func() {
			defer close(done)
			contract.Send(t, transport, script.For(newGet(t)))
		}()
		synctest.Wait()
		send(t, transport, "GET", s200)
		<-done
		return script.Waits()[1]
	})
}

// The wait of a body that is resumed is short after an attempt with progress,
// and long after another one.
func TestBackoffOfResumes(t *testing.T) {
	for cut, want := range map[int]time.Duration{10: longWait, 70_000: shortWait} {
		requireLongest(t, want, func(t *testing.T) time.Duration {
			var times []time.Time
			o := newOrigin(100_000, 10, cut)
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				times = append(times, time.Now())
				return o.RoundTrip(req)
			})
			transport := contract.Unchecked(t, httpretry.Config{
				Base: base, Policy: httpretry.Policy{Resume: true}})
			_, err := readAll(t, o, get(t, transport))
			require.NoError(t, err)
			require.Len(t, times, 3)
			assert.LessOrEqual(t, times[1].Sub(times[0]), shortWait)
			return times[2].Sub(times[1])
		})
	}
}
