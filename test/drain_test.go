package test

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
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/bounded"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// forever is longer than any test waits. A test ends its bubble with a sleep of
// twice that, so that the goroutines that a body holds end.
const forever = time.Hour

// slowBody is a body of one byte, whose Read and Close take a while.
type slowBody struct {
	read, close time.Duration
	deaf        bool // Close does not end a Read

	once   sync.Once
	closed chan struct{}
	closes atomic.Int32
}

func (b *slowBody) ended() chan struct{} {
	b.once.Do(func() { b.closed = make(chan struct{}) })
	return b.closed
}

func (b *slowBody) Read([]byte) (int, error) {
	ended := b.ended()
	if b.deaf {
		ended = nil
	}
	select {
	case <-time.After(b.read):
		return 0, io.EOF
	case <-ended:
		return 0, errors.New("read of a closed body")
	}
}

func (b *slowBody) Close() error {
	if b.closes.Add(1) == 1 {
		close(b.ended())
	}
	time.Sleep(b.close)
	return nil
}

func unavailableWith(body io.ReadCloser) *http.Response {
	return &http.Response{
		StatusCode: 503, ProtoMajor: 1, ContentLength: -1, Header: http.Header{}, Body: body}
}

// Hazard D2: a response is drained during the wait before the retry. The retry
// is late only if the drain takes longer than the wait. When it is sent, the
// response is closed and its attempt has ended, after 50 ms at the latest, and
// not later than a retry may start.
func TestDrainIsPartOfTheWait(t *testing.T) {
	const ms = time.Millisecond
	type test struct {
		wait        time.Duration
		maxElapsed  time.Duration
		read, close time.Duration
		deaf        bool
		header      string // Retry-After
		freed       time.Duration
		retried     time.Duration // 0: as the Event says
	}
	for name, tt := range map[string]test{
		"stalls":             {wait: 100 * ms, read: forever, freed: 50 * ms, retried: 100 * ms},
		"stalls, short wait": {wait: 10 * ms, read: forever, freed: 50 * ms, retried: 50 * ms},
		"stalls, no wait":    {read: forever, freed: 50 * ms, retried: 50 * ms},
		"stalls for as long as the wait": {
			wait: 50 * ms, read: forever, freed: 50 * ms, retried: 50 * ms},
		"stalls, Retry-After": {wait: 10 * ms, read: forever, header: "2", freed: 50 * ms},
		"stalls, MaxElapsed": {
			wait: 10 * ms, maxElapsed: 20 * ms, read: forever, freed: 20 * ms, retried: 20 * ms},
		"stalls, longer MaxElapsed": {
			wait: 10 * ms, maxElapsed: 70 * ms, read: forever, freed: 50 * ms, retried: 50 * ms},
		"slow": {
			wait: 100 * ms, read: 30 * ms, freed: 30 * ms, retried: 100 * ms},
		"slow, short wait": {
			wait: 10 * ms, read: 30 * ms, freed: 30 * ms, retried: 30 * ms},
		"blocks in Close":             {wait: 100 * ms, close: forever, retried: 100 * ms},
		"blocks in Close, short wait": {wait: 10 * ms, close: forever, retried: 50 * ms},
		"blocks in both": {
			wait: 200 * ms, read: forever, close: forever, deaf: true,
			freed: 50 * ms, retried: 200 * ms},
		"blocks in both, short wait": {
			wait: 10 * ms, read: forever, close: forever, deaf: true,
			freed: 50 * ms, retried: 100 * ms},
		"stalls after Close": {
			wait: 100 * ms, read: forever, deaf: true, freed: 50 * ms, retried: 100 * ms},
		"arrives at once":          {wait: 100 * ms, retried: 100 * ms},
		"arrives at once, no wait": {},
	} {
		// Without and with a context of the attempt's own.
		for _, timeout := range []time.Duration{0, forever} {
			contract.Bubble(t, fmt.Sprintf("%s/%v", name, timeout), func(t *testing.T) {
				body := &slowBody{read: tt.read, close: tt.close, deaf: tt.deaf}
				var sent []time.Time
				var freed time.Time
				base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					if sent = append(sent, time.Now()); len(sent) == 2 {
						assert.EqualValues(t, 1, body.closes.Load(), "closed before the retry")
						return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
					}
					context.AfterFunc(req.Context(), func() { freed = time.Now() })
					resp := unavailableWith(body)
					if tt.header != "" {
						resp.Header.Set("Retry-After", tt.header)
					}
					return resp, nil
				})
				policy, events := contract.RetryEvery(tt.wait), new(contract.Record)
				policy.AttemptTimeout, policy.MaxElapsed = timeout, tt.maxElapsed
				cfg := httpretry.Config{Base: base, Policy: policy, Observe: events.Observe}
				_, err := contract.New(t, cfg).
					RoundTrip(contract.Request(t, "GET", "http://a.test/", ""))
				require.NoError(t, err)
				require.Len(t, sent, 2)
				require.Len(t, events.Events, 2)
				retried := tt.retried
				if tt.header != "" {
					retried = events.Events[0].Wait
				} else {
					assert.Equal(t, tt.wait, events.Events[0].Wait)
				}
				assert.Equal(t, retried, sent[1].Sub(sent[0]))
				assert.Equal(t, retried, events.Events[1].Waited)
				assert.Equal(t, retried, events.Events[1].Elapsed)
				if timeout > 0 {
					synctest.Wait()
					assert.Equal(t, tt.freed, freed.Sub(sent[0]), "the end of the attempt")
				}
				time.Sleep(2 * forever)
			})
		}
	}
}

// Hazard D4: a body that arrives during the wait, in parts, leaves its
// connection to the retry. One that stalls frees it after 50 ms.
func TestDrainDuringTheWaitKeepsTheConnection(t *testing.T) {
	for _, parts := range []int{2, 100} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			inVirtualTimeAs(t, fmt.Sprintf("%d/%v", parts, timeout),
				func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
					if parts > 2 && closeDrains {
						t.Skip("Close waits for a mutex, which stops the time of a bubble")
					}
					var came []time.Time
					var left time.Duration
					base := start(func(w http.ResponseWriter, r *http.Request) {
						if came = append(came, time.Now()); len(came) > 1 {
							return
						}
						w.WriteHeader(http.StatusServiceUnavailable)
						for range parts {
							writeAndFlush(w, "part")
							select {
							case <-time.After(20 * time.Millisecond):
							case <-r.Context().Done():
								left = time.Since(came[0])
								return
							}
						}
					})
					var conns atomic.Int32
					countDials(base, &conns)
					policy := contract.RetryEvery(100 * time.Millisecond)
					policy.AttemptTimeout = timeout
					contract.Send(t, contract.With(t, base, policy),
						contract.Request(t, "GET", "http://a.test/", ""))
					require.Len(t, came, 2)
					assert.Equal(t, 100*time.Millisecond, came[1].Sub(came[0]))
					if parts == 2 {
						assert.EqualValues(t, 1, conns.Load(), "connections")
					} else {
						assert.Equal(t, 50*time.Millisecond, left)
					}
				})
		}
	}
}

// Hazard D2: a cancel ends the drain, as it ends the rest of the wait.
func TestCancelDuringDrain(t *testing.T) {
	const after = 20 * time.Millisecond
	for name, tt := range map[string]struct {
		read, close time.Duration
		deaf        bool
		takes       time.Duration
	}{
		"drained":            {read: after / 2, takes: after},
		"stalls":             {read: forever, takes: after},
		"stalls after Close": {read: forever, deaf: true, takes: after},
		"blocks in Close":    {close: forever, takes: after},
		"blocks in both":     {read: forever, close: forever, takes: after + 50*time.Millisecond},
	} {
		for _, wait := range []time.Duration{0, after / 2, 5 * after, time.Hour} {
			for _, legacy := range []bool{false, true} {
				if max(tt.read, tt.close, wait) < after {
					continue // the retry comes first
				}
				title := fmt.Sprintf("%s/%v/Cancel=%t", name, wait, legacy)
				contract.Bubble(t, title, func(t *testing.T) {
					body := &slowBody{read: tt.read, close: tt.close, deaf: tt.deaf}
					base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
						return unavailableWith(body), nil
					})
					events, ledger := new(contract.Record), new(contract.Ledger)
					policy := contract.RetryEvery(wait)
					policy.Budget = ledger
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					req := contract.Request(t, "GET", "http://a.test/", "").WithContext(ctx)
					if legacy {
						channel := make(chan struct{})
						//nolint:staticcheck // http.Client sets it for unknown transports
						req.Cancel = channel
						cancel = func() { close(channel) }
					}
					time.AfterFunc(after, cancel)
					cfg := httpretry.Config{Base: base, Policy: policy, Observe: events.Observe}
					start := time.Now()
					_, err := contract.Unchecked(t, cfg).RoundTrip(req)
					assert.Equal(t, tt.takes, time.Since(start))
					failure, ok := errors.AsType[*httpretry.Error](err)
					require.True(t, ok, "%v", err)
					assert.Equal(t, httpretry.ReasonCanceled, failure.Reason)
					assert.EqualValues(t, 1, body.closes.Load())
					require.Len(t, events.Events, 2)
					assert.Equal(t, tt.takes, events.Events[1].Waited)
					assert.Equal(t, refundedAfterFailure, ledger.Entries)
					time.Sleep(2 * forever)
				})
			}
		}
	}
}

// panickingBody is a body whose Read or Close panics.
type panickingBody struct {
	contract.ReaderFunc
	close func() error
}

func (b panickingBody) Close() error { return b.close() }

// Hazard K4: a panic in the drain reaches the caller at once, however long the
// wait is, and whichever goroutine drains. The retry is not charged for.
func TestPanicDuringDrain(t *testing.T) {
	boom := func() error { time.Sleep(20 * time.Millisecond); panic("boom") }
	read := contract.ReaderFunc(func([]byte) (int, error) { return 0, boom() })
	empty := contract.ReaderFunc(func([]byte) (int, error) { return 0, io.EOF })
	for name, body := range map[string]io.ReadCloser{
		"Read":  panickingBody{read, func() error { return nil }},
		"Close": panickingBody{empty, boom},
	} {
		for _, wait := range []time.Duration{0, 10 * time.Millisecond, time.Hour} {
			contract.Bubble(t, fmt.Sprintf("%s/%v", name, wait), func(t *testing.T) {
				var ctx context.Context
				counted := &contract.Body{ReadCloser: body}
				base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					ctx = req.Context()
					return unavailableWith(counted), nil
				})
				policy, ledger := contract.RetryEvery(wait), new(contract.Ledger)
				policy.AttemptTimeout, policy.Budget = forever, ledger
				cfg, start := httpretry.Config{Base: base, Policy: policy}, time.Now()
				transport := contract.Unchecked(t, cfg)
				assert.PanicsWithValue(t, "boom", func() {
					_, _ = transport.RoundTrip(contract.Request(t, "GET", "http://a.test/", ""))
				})
				assert.LessOrEqual(t, time.Since(start), 50*time.Millisecond)
				assert.Error(t, ctx.Err(), "the attempt has ended")
				assert.Positive(t, counted.Closes())
				assert.Equal(t, refundedAfterFailure, ledger.Entries)
			})
		}
	}
}

// stalledResume is a base whose first response breaks off and can be resumed,
// whose second one is a 503 that stalls, and whose third one is the rest.
type stalledResume struct {
	stalled slowBody
	sent    []time.Time
}

func (b *stalledResume) RoundTrip(req *http.Request) (*http.Response, error) {
	b.sent = append(b.sent, time.Now())
	resp := &http.Response{
		StatusCode: 200, ProtoMajor: 1, ContentLength: 8,
		Header: http.Header{"Etag": {`"v1"`}}, Request: req,
	}
	switch len(b.sent) {
	case 1:
		first := true
		resp.Body = io.NopCloser(contract.ReaderFunc(func(p []byte) (int, error) {
			if first {
				first = false
				return copy(p, "some"), nil
			}
			return 0, io.ErrUnexpectedEOF
		}))
	case 2:
		resp.StatusCode, resp.ContentLength, resp.Body = 503, -1, &b.stalled
	default:
		resp.StatusCode, resp.ContentLength = 206, 4
		resp.Header.Set("Content-Range", "bytes 4-7/8")
		rest := false
		resp.Body = io.NopCloser(contract.ReaderFunc(func(p []byte) (int, error) {
			if rest {
				return 0, io.EOF
			}
			rest = true
			return copy(p, "text"), nil
		}))
	}
	return resp, nil
}

// Hazard D2: the same applies to a resume.
func TestDrainDuringResume(t *testing.T) {
	const wait, first = 100 * time.Millisecond, 100 * time.Millisecond
	open := func(
		t *testing.T, policy httpretry.Policy,
	) (*stalledResume, *contract.Record, *http.Response) {
		base, events := &stalledResume{stalled: slowBody{read: forever}}, new(contract.Record)
		policy.Resume = true
		cfg := httpretry.Config{Base: base, Policy: policy, Observe: events.Observe}
		resp, err := contract.Unchecked(t, cfg).
			RoundTrip(contract.Request(t, "GET", "http://a.test/", ""))
		require.NoError(t, err)
		return base, events, resp
	}
	contract.Bubble(t, "retried", func(t *testing.T) {
		base, events, resp := open(t, contract.RetryEvery(wait))
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Equal(t, "sometext", string(text))
		require.Len(t, base.sent, 3)
		assert.Equal(t, wait, base.sent[2].Sub(base.sent[1]))
		assert.EqualValues(t, 1, base.stalled.closes.Load())
		assert.Equal(t, wait, events.Events[len(events.Events)-1].Waited)
	})
	contract.Bubble(t, "closed", func(t *testing.T) {
		base, _, resp := open(t, contract.RetryEvery(wait))
		start := time.Now()
		closeLater := func() { assert.NoError(t, resp.Body.Close()) }
		time.AfterFunc(first+20*time.Millisecond, closeLater)
		_, err := io.ReadAll(resp.Body)
		assert.Equal(t, http.ErrBodyReadAfterClose, err)
		assert.Equal(t, first+20*time.Millisecond, time.Since(start))
		assert.Len(t, base.sent, 2)
		assert.EqualValues(t, 1, base.stalled.closes.Load())
	})
	contract.Bubble(t, "no budget", func(t *testing.T) {
		policy := contract.RetryEvery(wait)
		policy.Budget = &allowOnce{}
		base, _, resp := open(t, policy)
		_, err := io.ReadAll(resp.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Len(t, base.sent, 2)
		assert.Equal(t, bounded.MaxTime, time.Since(base.sent[1]))
		assert.EqualValues(t, 1, base.stalled.closes.Load())
	})
}

// refundedAfterFailure is the ledger of a request that ends in its first wait.
var refundedAfterFailure = []string{
	"failure http://a.test", "withdraw http://a.test", "refund http://a.test"}

// allowOnce is a budget that allows one retry.
type allowOnce struct {
	contract.UsedUp
	used bool
}

func (b *allowOnce) Withdraw(context.Context, httpretry.AttemptResult) bool {
	used := b.used
	b.used = true
	return !used
}
