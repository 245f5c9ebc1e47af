package test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// The records of bodies use the same memory in turn. Many streams are sent at
// once. Their attempts end before or after the end of the upload, with a
// response or an error, or because the caller cancels. Every byte that a server
// or a base reads, on any attempt, belongs to the request and is in its place.
func TestRecordsDoNotShareBytes(t *testing.T) {
	const senders, requests = 16, 25
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		uploads := &uploads{t: t}
		base, srv := contract.Serve(t, proto, uploads.serve)
		policy := contract.RetryEvery(0)
		policy.ReplayBuffer = 96 << 10
		cfg := httpretry.Config{Base: uploads.lateReader(base), Policy: policy}
		transport := contract.New(t, cfg)
		var wg sync.WaitGroup
		for sender := range senders {
			wg.Go(func() {
				for i := range requests {
					uploads.send(transport, srv.URL, uint64(sender*requests+i))
				}
			})
		}
		waitFor(t, "the uploads", func() { wg.Wait(); uploads.late.Wait() })
		for event, n := range map[string]*atomic.Int32{
			"uploads that were accepted":                  &uploads.accepted,
			"uploads that were accepted at a retry":       &uploads.retried,
			"requests that failed or were canceled":       &uploads.failed,
			"bodies that a base read after its RoundTrip": &uploads.lateReads,
		} {
			assert.NotZero(t, n.Load(), event)
		}
	})
}

// uploads are the uploads of a test. Each has a number, which is the seed of
// its bytes.
type uploads struct {
	t    testing.TB
	late sync.WaitGroup // reads that continue after RoundTrip

	accepted, retried, failed, lateReads atomic.Int32
}

const numberHeader = "X-Number"

// uploadBody returns the body of an upload.
func uploadBody(number uint64) []byte {
	random := rand.New(rand.NewPCG(number, 0))
	most := 1 << (8 + random.IntN(10)) // so small bodies are as frequent as large ones
	return randomBytes(number, random.IntN(most))
}

// check fails the test if part is not the beginning of the upload, and reports
// whether it is all of it.
func (u *uploads) check(header http.Header, part []byte) (whole bool) {
	var number uint64
	_, err := fmt.Sscan(header.Get(numberHeader), &number)
	assert.NoError(u.t, err)
	want := uploadBody(number)
	assert.True(u.t, bytes.HasPrefix(want, part), "%d bytes of upload %d", len(part), number)
	return len(part) == len(want)
}

// serve reads a part of the upload or all of it, and accepts it, fails or cuts
// the connection. The last attempt is accepted.
func (u *uploads) serve(w http.ResponseWriter, r *http.Request) {
	way := rand.IntN(6)
	if attemptOf(r) == 5 {
		way = 0
	}
	if way > 2 {
		part, _ := io.ReadAll(io.LimitReader(r.Body, rand.Int64N(64<<10)))
		u.check(r.Header, part)
		if way == 3 {
			panic(http.ErrAbortHandler)
		}
		answerEarly(w, r, http.StatusServiceUnavailable)
		return
	}
	body, err := io.ReadAll(r.Body)
	whole := u.check(r.Header, body)
	switch {
	case err != nil: // the caller has canceled, or its reader has failed
	case way == 2:
		w.WriteHeader(http.StatusServiceUnavailable)
	case assert.True(u.t, whole, "the upload was cut, and seems complete"):
		u.accepted.Add(1)
		if attemptOf(r) > 1 {
			u.retried.Add(1)
		}
	}
}

// lateReader returns a base that answers some requests itself, while it reads
// their bodies. As net/http's does, it reads on after RoundTrip has returned.
func (u *uploads) lateReader(next http.RoundTripper) contract.BaseFunc {
	return func(req *http.Request) (*http.Response, error) {
		if rand.IntN(4) > 0 || httpretry.Attempt(req.Context()) == 5 {
			return next.RoundTrip(req)
		}
		header, body := req.Header, req.Body // RoundTrip must not use req later
		begun := make(chan struct{})
		u.late.Go(func() {
			defer body.Close()
			var got []byte
			p := make([]byte, 1+rand.IntN(10_000))
			for i := 0; ; i++ {
				n, err := body.Read(p)
				got = append(got, p[:n]...)
				if i == 2 || err != nil && i < 2 {
					close(begun)
				} else if i > 2 {
					u.lateReads.Add(1)
				}
				if err != nil {
					whole := u.check(header, got)
					assert.True(u.t, err != io.EOF || whole, "the body ends too early")
					return
				}
				runtime.Gosched()
			}
		})
		<-begun
		if rand.IntN(4) == 0 {
			return nil, iotest.ErrTimeout
		}
		return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody}, nil
	}
}

// send sends an upload, as a stream that has pieces of any size. Some callers
// cancel, and some readers fail.
func (u *uploads) send(transport http.RoundTripper, url string, number uint64) {
	ctx, cancel := context.WithCancel(u.t.Context())
	defer cancel()
	data := bytes.NewReader(uploadBody(number))
	most, cancelAt := 1+rand.IntN(20_000), rand.IntN(1<<18)
	stream := contract.ReaderFunc(func(p []byte) (int, error) {
		if data.Len() < cancelAt && data.Size() > int64(cancelAt) {
			cancel()
		}
		return data.Read(p[:min(len(p), 1+rand.IntN(most))])
	})
	body := &contract.Body{ReadCloser: io.NopCloser(stream)}
	req := contract.Streamed(u.t, "PUT", url, body).WithContext(ctx)
	req.Header.Set(numberHeader, fmt.Sprint(number))
	resp, err := transport.RoundTrip(req)
	if err != nil {
		u.failed.Add(1)
		return
	}
	assert.NoError(u.t, resp.Body.Close())
	assert.Contains(u.t, []int{200, 503}, resp.StatusCode)
}
