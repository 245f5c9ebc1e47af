package test

import (
	"crypto/tls"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/internal/wire"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
					resp, err := s.base.RoundTrip(req)
					if err == nil {
						require.NoError(t, resp.Body.Close())
					}
					require.Error(t, err)
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

// The texts by which resume.go knows that a body broke off with its stream or
// its connection.
func TestErrorsOfBrokenBodies(t *testing.T) {
	for prefix, end := range map[string]func(faults.Stream){
		"stream error: ": func(s faults.Stream) { s.ResetStream(faults.InternalError) },
		// of a stream
		"connection error: ": func(s faults.Stream) {
			s.Frame(faults.FramePing, 0, 1, make([]byte, 8))
		},
		"http2: server sent GOAWAY": func(s faults.Stream) {
			s.GoAway(s.ID, faults.NoError)
			s.CloseWrite()
			s.Drain()
		},
	} {
		t.Run(prefix, func(t *testing.T) {
			srv := faults.HTTP2(t, func(s faults.Stream) {
				s.Header(false, ":status", "200")
				s.Data(false, "text")
				end(s)
			})
			resp, err := faults.HTTP2Base(t).RoundTrip(contract.Request(t, "GET", srv.URL(), ""))
			require.NoError(t, err)
			_, err = io.ReadAll(resp.Body)
			require.Error(t, err)
			assert.True(t, strings.HasPrefix(err.Error(), prefix), err.Error())
			require.NoError(t, resp.Body.Close())
		})
	}
}

// An alert with which a server says that it failed, or that bytes were damaged,
// is Transient. Others mean that client and server do not fit.
func TestTransientAlerts(t *testing.T) {
	for name, tt := range map[string]struct {
		code byte
		want httpretry.Outcome
	}{
		"tls: internal error":    {80, transient},
		"tls: bad record MAC":    {20, transient},
		"tls: handshake failure": {40, final},
	} {
		t.Run(name, func(t *testing.T) {
			_, client := faults.Certificates(t)
			srv := faults.Listen(t, func(c *faults.Conn) {
				c.Send("\x15\x03\x01\x00\x02\x02" + string(rune(tt.code)))
				c.CloseWrite()
				c.Drain()
			})
			_, err := faults.Base(t, client).
				RoundTrip(contract.Request(t, "GET", "https://"+srv.Addr, ""))
			require.ErrorContains(t, err, "remote error: "+name)
			assert.Equal(t, tt.want, httpretry.Classify(nil, nil, err))
		})
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
