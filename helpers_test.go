package httpretry_test

import (
	"net"
	"net/http"
	"testing"

	"github.com/seed421102f4/httpretry/internal/retrytest"
)

// A script has the step of each attempt.
type script = []retrytest.Step

// Steps of scripts.
var (
	s200    = retrytest.Status(200)
	s201    = retrytest.Status(201)
	s202    = retrytest.Status(202)
	s204    = retrytest.Status(204)
	s304    = retrytest.Status(304)
	s400    = retrytest.Status(400)
	s404    = retrytest.Status(404)
	s409    = retrytest.Status(409)
	s421    = retrytest.Status(421)
	s425    = retrytest.Status(425)
	s429    = retrytest.Status(429)
	s500    = retrytest.Status(500)
	s501    = retrytest.Status(501)
	s503    = retrytest.Status(503)
	reset   = retrytest.Fails(retrytest.ErrReset)
	refused = retrytest.Fails(retrytest.ErrRefused)
)

// unknownHost is the error of net/http for a host that DNS does not know.
var unknownHost = &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}

// refuses returns the answer of a server that asks not to retry.
func refuses(status int) retrytest.Step {
	return retrytest.Status(status, "X-Should-Retry", "false")
}

// newGet returns a GET of http://a.test/.
func newGet(t testing.TB) *http.Request {
	return retrytest.Request(t, http.MethodGet, "http://a.test/", "")
}
