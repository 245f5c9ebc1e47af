package migration_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// program is both programs.
type program interface {
	get(ctx context.Context, id string) (string, error)
	put(ctx context.Context, id string, open func() (io.ReadCloser, error)) (string, error)
	add(ctx context.Context, key, text string) (string, error)
}

// run is what a program has done.
type run struct {
	result   string
	requests []string // that the server got: the method, the signature, the key and the body
	logged   string
	took     time.Duration
}

// happens runs a program against a server that gives one answer after another.
// The last one remains.
func happens(t *testing.T, isBefore bool, use func(context.Context, program) (string, error),
	answers ...http.HandlerFunc) (r run) {
	base := faults.Pipe(t, func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		assert.NoError(t, err)
		answer := answers[min(len(r.requests), len(answers)-1)]
		r.requests = append(r.requests, strings.Join([]string{
			req.Method, req.Header.Get("Signature"), req.Header.Get("Idempotency-Key"), string(body)}, " "))
		answer(w, req)
	})
	signed := 0
	sign := func(req *http.Request) {
		signed++
		req.Header.Set("Signature", strconv.Itoa(signed)) // a real one has the time
	}
	var logged strings.Builder
	logger := log.New(&logged, "", 0)
	var p program = newBefore("http://store.test/", base, sign, logger)
	if !isBefore {
		var err error
		p, err = newAfter("http://store.test/", base, sign, logger)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	time.AfterFunc(time.Minute, cancel)
	start := time.Now()
	text, err := use(ctx, p)
	r.took, r.logged = time.Since(start), logged.String()
	f, gaveUp := errors.AsType[*failure](err)
	switch {
	case errors.Is(err, context.Canceled):
		r.result = "canceled"
	case gaveUp:
		r.result = fmt.Sprintf("%d tries, status %d, error: %v", f.tries, f.status, f.cause != nil)
	default:
		r.result = fmt.Sprint(text, err)
	}
	return r
}

// says answers with a status, a body, and header fields as pairs.
func says(code int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// half sends the begin of a body, and then breaks off.
func half(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "100")
	_, _ = io.WriteString(w, `{"text": "se`)
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// stall sends the begin of a body, and then nothing.
func stall(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, `{"text": "se`)
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// TestProgram checks that the programs before and after have the same results.
// Only a wait that a server asks for may be up to a quarter or a second longer.
func TestProgram(t *testing.T) {
	get := func(ctx context.Context, p program) (string, error) { return p.get(ctx, "7") }
	put := func(ctx context.Context, p program) (string, error) {
		return p.put(ctx, "7", func() (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader("data")), nil
		})
	}
	add := func(ctx context.Context, p program) (string, error) { return p.add(ctx, "key", "data") }
	soon := func(ctx context.Context, p program) (string, error) {
		ctx, cancel := context.WithCancel(ctx)
		time.AfterFunc(150*time.Millisecond, cancel)
		return p.get(ctx, "7")
	}
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	abort := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	ok, busy, down := says(200, `{"text": "seven"}`), says(200, `{"error": "busy"}`), says(503, "")
	const success, wait = "seven<nil>", `{"error": "busy", "wait": "2.5s"}`
	for _, tt := range []struct {
		name    string
		use     func(context.Context, program) (string, error)
		answers []http.HandlerFunc
		want    string
		tries   int
	}{
		{"success", get, []http.HandlerFunc{ok}, success, 1},
		{"404", get, []http.HandlerFunc{says(404, "")}, "404 Not Found", 1},
		{"503, then 200", get, []http.HandlerFunc{down, ok}, success, 2},
		{"always 503", get, []http.HandlerFunc{down}, "4 tries, status 503, error: false", 4},
		{"busy, then 200", get, []http.HandlerFunc{busy, busy, ok}, success, 3},
		{"busy with a wait", get, []http.HandlerFunc{says(200, wait), ok}, success, 2},
		{"always busy", get, []http.HandlerFunc{busy}, "4 tries, status 200, error: false", 4},
		{"a body breaks off", get, []http.HandlerFunc{half, ok}, success, 2},
		{"all bodies break off", get, []http.HandlerFunc{half}, "4 tries, status 200, error: false", 4},
		{"a body stalls", get, []http.HandlerFunc{stall, ok}, success, 2},
		{"no response in time", get, []http.HandlerFunc{hang, ok}, success, 2},
		{"429 with a wait", get, []http.HandlerFunc{says(429, wait), ok}, success, 2},
		{"503 with Retry-After", get, []http.HandlerFunc{says(503, "", "Retry-After", "3"), ok}, success, 2},
		{"PUT", put, []http.HandlerFunc{down, ok}, success, 2},
		{"POST with a key", add, []http.HandlerFunc{abort, ok}, success, 2},
		{"canceled", soon, []http.HandlerFunc{down}, "canceled", 2},
	} {
		contract.Bubble(t, tt.name, func(t *testing.T) {
			was := happens(t, true, tt.use, tt.answers...)
			is := happens(t, false, tt.use, tt.answers...)
			assert.Contains(t, was.result, tt.want)
			assert.Len(t, was.requests, tt.tries)
			assert.Equal(t, was.result, is.result)
			assert.Equal(t, was.requests, is.requests)
			assert.Equal(t, was.logged, is.logged)
			assert.GreaterOrEqual(t, is.took, was.took)
			assert.LessOrEqual(t, is.took, was.took+max(was.took/4, time.Second))
		})
	}
}
