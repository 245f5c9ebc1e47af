package test

import (
	"crypto/tls"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/internal/wire"
	"github.com/stretchr/testify/assert"
)

// Hazard C1: wire.Resendable tells which requests net/http resends over HTTP/1
// after it has written them (Request.isReplayable).
func TestReplayable(t *testing.T) {
	for _, method := range []string{
		"", "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "POST", "PATCH", "QUERY", "get"} {
		for _, header := range []http.Header{
			{}, {"Idempotency-Key": {"k"}}, {"Idempotency-Key": {}}, {"X-Idempotency-Key": {""}},
			{"idempotency-key": {"k"}},
			{"X-Request-Id": {"k"}},
		} {
			t.Run(
				method+" "+strings.Join(slices.Collect(maps.Keys(header)), ""), func(t *testing.T) {
					s := reusedConn(func(*faults.Conn) {})(t)
					before := s.requests()
					req := contract.Request(t, "POST", s.url, "")
					req.Method, req.Header = method, header
					_ = sendFails(t, s.base, req)
					want := int32(1)
					if wire.Resendable(method, header) {
						want = 2
					}
					s.server.Settle(t)
					assert.Equal(t, want, s.requests()-before)
				})
		}
	}
}

// The names under which net/http registers its own HTTP/2. Any other name in
// TLSNextProto is that of a protocol that may not call the hooks of httptrace.
// Clone returns the names only if the map was not nil.
func TestProtocolNames(t *testing.T) {
	base := &http.Transport{Protocols: new(http.Protocols),
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}
	base.Protocols.SetHTTP1(true)
	base.Protocols.SetHTTP2(true)
	base.Protocols.SetUnencryptedHTTP2(true)
	names := base.Clone().TLSNextProto
	assert.Contains(t, names, "h2")
	assert.Subset(t, []string{"h2", "unencrypted_http2"}, slices.Collect(maps.Keys(names)))
}
