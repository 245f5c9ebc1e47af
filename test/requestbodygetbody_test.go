package test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// Hazard B2, D3: GetBody is not called for a retry that is not made, because it
// may seek in the body that is still being sent. The caller then gets the
// response, unread.
func TestGetBodyNeverSent(t *testing.T) {
	for name, tt := range map[string]struct {
		answer   contract.Step
		deadline time.Duration
		change   func(*httpretry.Policy)
	}{
		"Retry-After too long": {answer: contract.Status(503, "Retry-After", "3600")},
		"deadline too near":    {answer: s503, deadline: time.Second},
		"too long in all": {answer: s503,
			change: func(p *httpretry.Policy) { p.MaxElapsed = time.Second }},
		"budget empty": {answer: s503,
			change: func(p *httpretry.Policy) { p.Budget = contract.UsedUp{} }},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			policy := contract.RetryEvery(time.Minute)
			if tt.change != nil {
				tt.change(&policy)
			}
			ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(tt.deadline, time.Hour))
			defer cancel()
			req := contract.Streamed(t, "PUT", "http://a.test/", contract.Counted("text")).
				WithContext(ctx)
			req.GetBody = func() (io.ReadCloser, error) {
				t.Error("GetBody was called")
				return contract.Counted("text"), nil
			}
			resp, err := contract.With(t, contract.Play(tt.answer), policy).RoundTrip(req)
			require.NoError(t, err)
			assert.Equal(t, "body of 503", contract.ReadBody(t, resp))
		})
	}
}

// seekableBody is a body as Azure's SDK makes it. GetBody seeks in it and
// returns the same body, whose Close does nothing.
type seekableBody struct{ *bytes.Reader }

func (seekableBody) Close() error { return nil }

// Hazard B2: a body from GetBody is closed once if the retry that it was made
// for is canceled while it waits.
func TestGetBodyUnused(t *testing.T) {
	for _, first := range []string{"another body", "in memory", "the same body"} {
		contract.Bubble(t, first, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			body := contract.Counted("text")
			req := contract.Streamed(t, "PUT", "http://a.test/", contract.Counted("text"))
			// The body is still open when the attempt has been answered.
			var base http.RoundTripper = newBodyBase(func(body io.ReadCloser, _ int) int {
				time.AfterFunc(2*time.Hour, func() { _ = body.Close() })
				return 503
			})
			switch first {
			case "in memory":
				req = contract.Request(t, "PUT", "http://a.test/", "text")
				base = contract.Play(refused)
			case "the same body":
				req.Body = body
			}
			req.GetBody = func() (io.ReadCloser, error) {
				time.AfterFunc(time.Second, cancel)
				return body, nil
			}
			transport := contract.With(t, base, contract.RetryEvery(time.Minute))
			_, err := transport.RoundTrip(req.WithContext(ctx))
			require.ErrorIs(t, err, context.Canceled)
			time.Sleep(3 * time.Hour)
			assert.Equal(t, 1, body.Closes())
		})
	}
}

// Hazard B2: if GetBody fails or panics, the budget takes back the charge for
// the retry that is not made, and nothing stays open.
func TestGetBodyFailsAfterTheCharge(t *testing.T) {
	for _, panics := range []bool{false, true} {
		policy, ledger := contract.RetryEvery(0), new(contract.Ledger)
		policy.Budget = ledger
		body, answer := contract.Counted("text"), contract.Counted("later")
		req := contract.Streamed(t, "PUT", "http://a.test/", body)
		req.GetBody = func() (io.ReadCloser, error) {
			if panics {
				panic("boom")
			}
			return nil, errors.New("the file is gone")
		}
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			_ = req.Body.Close()
			return &http.Response{StatusCode: 503, Body: answer}, nil
		})
		transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
		if panics {
			assert.PanicsWithValue(t, "boom", func() { _, _ = transport.RoundTrip(req) })
		} else {
			resp, err := transport.RoundTrip(req)
			require.NoError(t, err)
			assert.Equal(t, 503, resp.StatusCode)
			assert.Equal(t, "later", contract.ReadBody(t, resp))
		}
		assert.Equal(t, refundedAfterFailure, ledger.Entries)
		assert.Equal(t, 1, body.Closes())
		assert.Equal(t, 1, answer.Closes())
	}
}

// Layers in Base get GetBody. If each of them has an Unwrap method, and the
// last one returns net/http's Transport, only that would use GetBody, to resend
// the body over HTTP/2. Then it is hidden, unless the attempt is the caller's
// request.
func TestGetBodyIsHidden(t *testing.T) {
	http2 := &http.Transport{Protocols: new(http.Protocols)}
	http2.Protocols.SetUnencryptedHTTP2(true)
	for _, tt := range []struct {
		name, method, url string
		stream            bool // the body is not in memory
		wraps             http.RoundTripper
		want              bool
	}{
		{"PUT", "PUT", "http://a.test/", false, nil, true},
		{"PUT, stream", "PUT", "http://a.test/", true, nil, true},
		{"POST", "POST", "http://a.test/", false, nil, true},
		{"Transport, HTTP/1", "POST", "http://a.test/", false, &http.Transport{}, true},
		{"Transport, HTTP/1, stream", "PUT", "http://a.test/", true, &http.Transport{}, true},
		{"Transport, HTTPS", "POST", "https://a.test/", false, &http.Transport{}, false},
		{"Transport, HTTPS, stream", "PUT", "https://a.test/", true, &http.Transport{}, false},
		{"Transport, HTTPS, PUT", "PUT", "https://a.test/", false, &http.Transport{}, true},
		{"Transport, HTTP/2", "POST", "http://a.test/", false, http2, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			open := func() io.ReadCloser {
				return io.NopCloser(iotest.OneByteReader(strings.NewReader("text")))
			}
			script := contract.Play(refused, s200)
			var base http.RoundTripper = script
			if tt.wraps != nil {
				base = httpretry.Through(script, tt.wraps)
			}
			req := contract.Request(t, tt.method, tt.url, "text")
			if tt.stream {
				req.Body = open()
				req.GetBody = func() (io.ReadCloser, error) { return open(), nil }
			}
			contract.Send(t, contract.With(t, base, contract.RetryEvery(0)), req)
			require.Len(t, script.Attempts(), 2)
			for _, a := range script.Attempts() {
				assert.Equal(t, "text", a.Body)
				assert.Equal(t, tt.want, a.Request.GetBody != nil)
			}
		})
	}
}

// Hazard A5, B2: GetBody may seek in the reader of a body, and return that body
// or another one that reads from it. The attempt before, which may still be
// sending the body, does not read during that. Each attempt sends the whole
// body.
func TestGetBodySeeks(t *testing.T) {
	data := randomBytes(1, 16<<20)
	for _, inMemory := range []bool{false, true} {
		for _, length := range []int64{int64(len(data)), -1} {
			for _, wrapped := range []bool{false, true} {
				name := fmt.Sprintf("in memory %v/length %d/wrapped %v", inMemory, length, wrapped)
				t.Run(name, func(t *testing.T) {
					srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
						if c.Number < 4 {
							_, _ = io.CopyN(io.Discard, req.Body, 1000)
							c.Respond(503, "later", "Connection: close")
							if c.Number == 1 {
								<-t.Context().Done() // until then, the upload is not over
							}
							c.Drain()
							return false
						}
						checkBody(t, req, data)
						c.Respond(200, "")
						return false
					})
					reader := bytes.NewReader(data)
					var body io.ReadCloser = seekableBody{reader}
					if inMemory {
						body = io.NopCloser(reader)
					}
					req := contract.Streamed(t, "PUT", srv.URL(), body)
					req.ContentLength = length
					req.GetBody = func() (io.ReadCloser, error) {
						_, err := reader.Seek(0, io.SeekStart)
						if wrapped {
							return &contract.Body{ReadCloser: body}, err
						}
						return body, err
					}
					transport := contract.With(t, nil, contract.RetryEvery(0))
					assert.Equal(t, 200, contract.Send(t, transport, req).StatusCode)
					assert.EqualValues(t, 4, srv.Conns.Load())
				})
			}
		}
	}
}

// Hazard B2: a GetBody that blocks holds up neither an attempt past its end nor
// the end of the request. A body that it returns later is closed.
func TestGetBodyBlocks(t *testing.T) {
	canceled := errors.New("the caller's cause")
	for name, tt := range map[string]struct {
		timeout, maxElapsed time.Duration
		layer               bool // calls GetBody itself, in each attempt
		err                 error
		reason              httpretry.Reason
		takes               time.Duration
	}{
		"canceled": {0, 0, false, nil, httpretry.ReasonCanceled, time.Hour},
		"AttemptTimeout": {time.Second, 0, false, nil,
			httpretry.ReasonNotReplayable, time.Second},
		"MaxElapsed": {0, time.Minute, false, nil,
			httpretry.ReasonNotReplayable, time.Minute},
		"in a layer, canceled": {0, 0, true, canceled, httpretry.ReasonCanceled, time.Hour},
		"in a layer, AttemptTimeout": {time.Second, 0, true, context.DeadlineExceeded,
			httpretry.ReasonNotReplayable, time.Second + 50*time.Millisecond},
	} {
		for _, inMemory := range []bool{false, true} {
			contract.Bubble(t, fmt.Sprintf("%s/in memory %v", name, inMemory), func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Hour, func() { cancel(canceled) })
				req := contract.Streamed(t, "PUT", "http://a.test/", contract.Counted("text"))
				if inMemory {
					req.Body = io.NopCloser(strings.NewReader("text"))
				}
				late := contract.Counted("late")
				req.GetBody = func() (io.ReadCloser, error) {
					time.Sleep(2 * time.Hour)
					return late, nil
				}
				var base http.RoundTripper = contract.Play(s503)
				if tt.layer {
					base = contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
						_ = req.Body.Close()
						_, err := req.GetBody()
						return nil, err
					})
				}
				policy, events := contract.RetryEvery(0), new(contract.Record)
				policy.AttemptTimeout, policy.MaxElapsed = tt.timeout, tt.maxElapsed
				start := time.Now()
				resp, err := contract.Recorded(t, base, policy, events).
					RoundTrip(req.WithContext(ctx))
				assert.Equal(t, tt.takes, time.Since(start))
				assert.Equal(t, tt.reason, events.Reason())
				if tt.err != nil {
					require.ErrorIs(t, err, tt.err)
				} else {
					require.NoError(t, err)
					assert.Equal(t, "body of 503", contract.ReadBody(t, resp))
				}
				time.Sleep(3 * time.Hour)
				assert.Equal(t, 1, late.Closes())
			})
		}
	}
}

// Hazard B2: if no time is left after the wait, GetBody still has a moment. The
// jitter after a wait gets only the time that GetBody has left.
func TestSlowGetBodyBeforeMaxElapsed(t *testing.T) {
	for name, tt := range map[string]struct {
		answer           contract.Step
		wait, maxElapsed time.Duration
		getBody, most    time.Duration // that GetBody and the request take
	}{
		"no time left": {s503, time.Minute, time.Minute,
			time.Millisecond, time.Minute + time.Millisecond},
		"jitter": {contract.Status(503, "Retry-After", "20"), 0, 30 * time.Second,
			9 * time.Second, 30 * time.Second},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			for range 20 {
				policy := contract.RetryEvery(tt.wait)
				policy.MaxElapsed = tt.maxElapsed
				req := contract.Streamed(t, "PUT", "http://a.test/", contract.Counted("text"))
				req.GetBody = func() (io.ReadCloser, error) {
					time.Sleep(tt.getBody)
					return contract.Counted("text"), nil
				}
				transport := contract.With(t, contract.Play(tt.answer, s200), policy)
				start := time.Now()
				assert.Equal(t, 200, contract.Send(t, transport, req).StatusCode)
				assert.LessOrEqual(t, time.Since(start), tt.most)
			}
		})
	}
}

// Once an attempt has sent all of its body, GetBody may return the same reader.
// Without an AttemptTimeout, such a request is a copy, too.
func TestGetBodyReturnsTheSameReaderLater(t *testing.T) {
	data := randomBytes(1, 1<<20)
	for _, timeout := range []time.Duration{0, time.Minute} {
		inVirtualTimeAs(t, timeout.String(), func(
			t *testing.T, start func(http.HandlerFunc) *http.Transport) {
			base := start(func(w http.ResponseWriter, r *http.Request) {
				checkBody(t, r, data)
				time.Sleep(time.Second) // the client knows by then that it has written the request
				if attemptOf(r) < 3 {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			})
			policy := contract.RetryEvery(time.Second)
			policy.AttemptTimeout = timeout
			reader := bytes.NewReader(data)
			req := contract.Streamed(t, "PUT", "http://a.test/", io.NopCloser(reader))
			req.ContentLength = -1
			req.GetBody = func() (io.ReadCloser, error) {
				_, err := reader.Seek(0, io.SeekStart)
				return io.NopCloser(reader), err
			}
			assert.Equal(t, 200, contract.Send(t, contract.With(t, base, policy), req).StatusCode)
		})
	}
}
