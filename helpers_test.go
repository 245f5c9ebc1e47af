package httpretry_test

import (
	"net"
	"net/http"
	"testing"

	"github.com/seed421102f4/httpretry/internal/contract"
)

// A script has the step of each attempt.
type script = []contract.Step

// Steps of scripts.
var (
	s200    = contract.Status(200)
	s201    = contract.Status(201)
	s202    = contract.Status(202)
	s204    = contract.Status(204)
	s304    = contract.Status(304)
	s400    = contract.Status(400)
	s404    = contract.Status(404)
	s409    = contract.Status(409)
	s421    = contract.Status(421, "Connection", "close")
	s425    = contract.Status(425)
	s429    = contract.Status(429)
	s500    = contract.Status(500)
	s501    = contract.Status(501)
	s503    = contract.Status(503)
	reset   = contract.Fails(contract.ErrReset)
	refused = contract.Fails(contract.ErrRefused)
)

// unknownHost is the error of net/http for a host that DNS does not know.
var unknownHost = &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}

// refuses returns the answer of a server that asks not to retry.
func refuses(status int) contract.Step {
	return contract.Status(status, "X-Should-Retry", "false")
}

// newGet returns a GET of http://a.test/.
func newGet(t testing.TB) *http.Request {
	return contract.Request(t, http.MethodGet, "http://a.test/", "")
}

// newHeader returns a header of names and values in turn.
func newHeader(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}
