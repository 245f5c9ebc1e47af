package httpretry

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/seed421102f4/httpretry/internal/fielderr"
)

const defaultAttemptHeader = "Retry-Attempt"

// Middleware returns a handler that keeps the retries of services that call one
// another from multiplying. It fits the Use method of many routers. If an
// inbound request is itself a retry, its client retries. So requests in its
// context are not retried ([ReasonCallerRetries]), unless they were
// [Unprocessed]. After next has returned, requests are retried as usual.
//
// An inbound request is a retry if its X-Envoy-Attempt-Count is at least 2, or
// its Retry-Attempt or its Grpc-Previous-Rpc-Attempts is at least 1. Clients
// can forge them, which affects no other request. [MiddlewareConfig] adds
// headers.
func Middleware(next http.Handler) http.Handler { return MiddlewareConfig{}.Wrap(next) }

// MiddlewareConfig configures a [Middleware]. Its zero value is the default.
type MiddlewareConfig struct {
	_ [0]func() // no unkeyed literals, no comparison

	Headers []string // others that count retries, such as the AttemptHeader of callers
}

// Wrap is Middleware with c. It panics if the name of a header is not valid.
func (c MiddlewareConfig) Wrap(next http.Handler) http.Handler {
	names := []string{defaultAttemptHeader}
	for i, name := range c.Headers {
		err := checkHeaderName(name)
		if name == "" {
			err = fielderr.New(`""`, "a header name, such as X-Request-Id")
		}
		if err != nil {
			panic(fielderr.At(fmt.Sprintf("httpretry: MiddlewareConfig.Headers[%d]", i), err))
		}
		names = append(names, http.CanonicalHeaderKey(name))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := copyFromContext(r.Context())
		in := &inbound{priorAttempts: inboundRetries(r.Header, names)}
		// A Middleware around this one may know another header.
		if v.inbound.isOpen() {
			in.priorAttempts = max(in.priorAttempts, v.inbound.priorAttempts)
		}
		defer in.done.Store(true)
		v.inbound = in
		marked := r.WithContext(v.withContext(r.Context()))
		// The server removes a form's files, and handlers around this one read
		// the pattern that a mux has matched. Both know r only.
		defer func() {
			if r.MultipartForm == nil {
				r.MultipartForm = marked.MultipartForm
			}
			r.Pattern = marked.Pattern
		}()
		next.ServeHTTP(w, marked)
	})
}

// inboundRetries returns how often a request was sent before, by any of the
// headers in use for that.
func inboundRetries(h http.Header, names []string) int {
	retries := max(
		maxCount(h["X-Envoy-Attempt-Count"])-1, // which counts from 1
		maxCount(h["Grpc-Previous-Rpc-Attempts"]),
	)
	for _, name := range names {
		retries = max(retries, maxCount(h[name]))
	}
	return retries
}

// maxCount returns the largest of values that are whole numbers, or 0.
func maxCount(values []string) int {
	most := 0
	for _, v := range values {
		v = strings.Trim(v, " \t")
		// strconv reads at most as many digits as fit, so it does not see
		// whether others follow.
		if strings.Trim(v, "0123456789") == "" {
			n, _ := strconv.Atoi(v) // the largest int if v is larger, 0 if empty
			most = max(most, n)
		}
	}
	return min(most, math.MaxInt32/2) // to which attempts can be added
}
