package httpretry_test

import (
	"net"
	"net/http"
	"testing"

	"github.com/seed421102f4/httpretry/internal/testutil"
)

// A script has the step of each attempt.
type script = []testutil.Step

// Steps of scripts.
var (
	s200    = testutil.Status(200)
	s201    = testutil.Status(201)
	s202    = testutil.Status(202)
	s204    = testutil.Status(204)
	s304    = testutil.Status(304)
	s400    = testutil.Status(400)
	s404    = testutil.Status(404)
	s409    = testutil.Status(409)
	s421    = testutil.Status(421)
	s425    = testutil.Status(425)
	s429    = testutil.Status(429)
	s500    = testutil.Status(500)
	s501    = testutil.Status(501)
	s503    = testutil.Status(503)
	reset   = testutil.Fails(testutil.ErrReset)
	refused = testutil.Fails(testutil.ErrRefused)
)

// unknownHost is the error of net/http for a host that DNS does not know.
var unknownHost = &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}

// refuses returns the answer of a server that asks not to retry.
func refuses(status int) testutil.Step {
	return testutil.Status(status, "X-Should-Retry", "false")
}

// newGet returns a GET of http://a.test/.
func newGet(t testing.TB) *http.Request {
	return testutil.Request(t, http.MethodGet, "http://a.test/", "")
}
