package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
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

// slowBody is a body without a byte, whose Read and Close take a while.
type slowBody struct {
	read, close time.Duration
	deaf        bool // Close does not end a Read
	closed      chan struct{}
	closes      atomic.Int32
}

func newSlowBody(read, close time.Duration, deaf bool) *slowBody {
	return &slowBody{read: read, close: close, deaf: deaf, closed: make(chan struct{})}
}

func (b *slowBody) Read([]byte) (int, error) {
	ended := b.closed
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
		close(b.closed)
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
	for name, tt := range map[string]struct {
		wait        time.Duration
		maxElapsed  time.Duration
		read, close time.Duration
		deaf        bool
		header      string // Retry-After
		freed       time.Duration
		retried     time.Duration // 0: as the Event says
	}{
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
				body := newSlowBody(tt.read, tt.close, tt.deaf)
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
				_, err := contract.Recorded(t, base, policy, events).RoundTrip(newGet(t))
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
					contract.Send(t, contract.With(t, base, policy), newGet(t))
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
					body := newSlowBody(tt.read, tt.close, tt.deaf)
					base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
						return unavailableWith(body), nil
					})
					events, ledger := new(contract.Record), new(contract.Ledger)
					policy := contract.RetryEvery(wait)
					policy.Budget = ledger
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					req := newGet(t).WithContext(ctx)
					if legacy {
						channel := make(chan struct{})
						//nolint:staticcheck // http.Client sets it for unknown transports
						req.Cancel = channel
						cancel = func() { close(channel) }
					}
					time.AfterFunc(after, cancel)
					transport, start := contract.Recorded(t, base, policy, events), time.Now()
					_, err := transport.RoundTrip(req)
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
				transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
				start := time.Now()
				assert.PanicsWithValue(t, "boom", func() { _, _ = transport.RoundTrip(newGet(t)) })
				assert.LessOrEqual(t, time.Since(start), 50*time.Millisecond)
				assert.Error(t, ctx.Err(), "the attempt has ended")
				assert.Positive(t, counted.Closes())
				assert.Equal(t, refundedAfterFailure, ledger.Entries)
			})
		}
	}
}

// Hazard D2: the same applies to a resume. The first response breaks off and can
// be resumed, the second one is a 503 that stalls, and the third one is the rest.
func TestDrainDuringResume(t *testing.T) {
	const wait, closed = 100 * time.Millisecond, 120 * time.Millisecond
	for name, tt := range map[string]struct {
		budget httpretry.Budget
		closed time.Duration // when the caller closes the body
		text   string
		err    error
		takes  time.Duration
		sent   int
	}{
		"retried": {httpretry.Unlimited{}, forever, "sometext", nil, 2 * wait, 3},
		"closed":  {httpretry.Unlimited{}, closed, "some", http.ErrBodyReadAfterClose, closed, 2},
		"no budget": {&httpretry.HostBudget{Burst: 1}, forever, "some", io.ErrUnexpectedEOF,
			wait + bounded.MaxTime, 2},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			broken := io.MultiReader(
				strings.NewReader("some"), iotest.ErrReader(io.ErrUnexpectedEOF))
			stalled := newSlowBody(forever, 0, false)
			rest := contract.Status(206, "Etag", `"v1"`, "Content-Range", "bytes 4-7/8")
			rest.Body = "text"
			base := contract.Play(contract.Step{Func: func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, ProtoMajor: 1, ContentLength: 8,
					Header: http.Header{"Etag": {`"v1"`}}, Body: io.NopCloser(broken)}, nil
			}}, contract.Step{Func: func(*http.Request) (*http.Response, error) {
				return unavailableWith(stalled), nil
			}}, rest)
			policy, events := contract.RetryEvery(wait), new(contract.Record)
			policy.Resume, policy.Budget = true, tt.budget
			resp, err := contract.Recorded(t, base, policy, events).RoundTrip(newGet(t))
			require.NoError(t, err)
			time.AfterFunc(tt.closed, func() { assert.NoError(t, resp.Body.Close()) })
			text, err := io.ReadAll(resp.Body)
			require.ErrorIs(t, err, tt.err)
			assert.Equal(t, tt.text, string(text))
			assert.Equal(t, tt.takes, time.Since(base.Start))
			assert.Len(t, base.Attempts(), tt.sent)
			assert.EqualValues(t, 1, stalled.closes.Load())
			if err == nil {
				assert.Equal(t, wait, events.Events[len(events.Events)-1].Waited)
			}
			require.NoError(t, resp.Body.Close())
		})
	}
}

// refundedAfterFailure is the ledger of a request that ends in its first wait.
var refundedAfterFailure = []string{
	"failure http://a.test", "withdraw http://a.test", "refund http://a.test"}
