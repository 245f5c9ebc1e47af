package httpretry_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// Hazard J1, J3.
func TestIdempotent(t *testing.T) {
	for method, want := range map[string]bool{
		"": true, "GET": true, "HEAD": true, "OPTIONS": true, "TRACE": true, "PUT": true, "DELETE": true, "QUERY": true,
		"POST": false, "PATCH": false, "CONNECT": false, "get": false, "Put": false, "PROPFIND": false,
	} {
		assert.Equal(t, want, httpretry.Idempotent(&http.Request{Method: method}), method)
	}
	for _, tt := range []struct {
		name   string
		header http.Header
		want   bool
	}{
		{"no header", nil, false},
		{"key", http.Header{"Idempotency-Key": {"k"}}, true},
		{"X-key", http.Header{"X-Idempotency-Key": {"k"}}, true},
		{"empty key", http.Header{"Idempotency-Key": {""}}, false},
		{"empty among others", http.Header{"Idempotency-Key": {"", "k"}}, true},
		{"net/http's form of a promise", http.Header{"Idempotency-Key": {}}, true},
		{"lower case in the map", http.Header{"idempotency-key": {"k"}}, true},
		{"empty, lower case in the map", http.Header{"idempotency-key": {""}}, false},
		{"another of that length", http.Header{"Idempotency-Kex": {"k"}}, false},
	} {
		assert.Equal(t, tt.want, httpretry.Idempotent(&http.Request{Method: "POST", Header: tt.header}), tt.name)
	}
}

// A caller may say of one request what its looks do not.
func TestWithIdempotent(t *testing.T) {
	base, events := play(status(503), status(200)), new(record)
	policy := every(0)
	policy.NewKey = func(*http.Request) string { t.Error("a key is made for a request that needs none"); return "key" }
	transport := contract.New(t, httpretry.Config{Base: base, Policy: policy, Observe: events.observe})
	req := request(t, "POST", "http://a.test/_search", "query")
	resp, err := transport.RoundTrip(req.WithContext(httpretry.WithIdempotent(req.Context())))
	require.NoError(t, err)
	finish(t, resp)
	assert.Len(t, base.attempts(), 2)
	assert.Equal(t, httpretry.ReasonFinal, events.reason())
}

// Hazard J4.
func TestRandomKey(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		key := httpretry.RandomKey(nil)
		assert.GreaterOrEqual(t, len(key), 26, "26 characters of base32 are 130 bits")
		assert.False(t, seen[key])
		seen[key] = true
	}
}

// Hazard J2, J3, J8: a key is made once, for the requests that need one, and
// the request is not touched.
func TestNewKey(t *testing.T) {
	made := 0
	policy := every(0)
	policy.NewKey = func(*http.Request) string { made++; return httpretry.RandomKey(nil) }
	var last string
	for _, tt := range []struct {
		name   string
		method string
		header http.Header
		made   int
	}{
		{"GET", "GET", http.Header{}, 0},
		{"PUT", "PUT", http.Header{}, 0},
		{"POST", "POST", http.Header{}, 1},
		{"POST again", "POST", http.Header{}, 1},
		{"POST with an empty key", "POST", http.Header{"Idempotency-Key": {""}}, 1},
		{"POST with its own", "POST", http.Header{"Idempotency-Key": {"own"}}, 0},
		{"POST with its own, oddly spelt", "POST", http.Header{"idempotency-key": {"own"}}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			made = 0
			base := play(status(503), fails(errReset), status(201))
			req := request(t, tt.method, "http://a.test/", "text")
			req.Header = tt.header
			resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(req)
			require.NoError(t, err)
			finish(t, resp)
			require.Len(t, base.attempts(), 3)
			assert.Equal(t, tt.made, made)
			key := base.attempts()[0].header["Idempotency-Key"]
			for _, a := range base.attempts() {
				assert.Equal(t, key, a.header["Idempotency-Key"], "the same on each attempt")
			}
			if tt.made == 1 {
				require.Len(t, key, 1)
				assert.NotEqual(t, last, key[0])
				last = key[0]
			} else {
				assert.Equal(t, tt.header["Idempotency-Key"], key)
			}
		})
	}
}

func TestNewKeyMayDecline(t *testing.T) {
	policy := every(0)
	policy.NewKey = func(*http.Request) string { return "" }
	base := play(status(503))
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, "POST", "http://a.test/", "text"))
	require.NoError(t, err)
	finish(t, resp)
	require.Len(t, base.attempts(), 1)
	assert.NotContains(t, base.attempts()[0].header, "Idempotency-Key")
}

// Hazard J5, J7: a key that a header may not hold is an error that does not
// show it.
func TestBadKey(t *testing.T) {
	for key, want := range map[string]string{
		"secret\r\nX-Evil: 1": "httpretry: not sent: Policy.NewKey: byte 0x0d at position 6 of the key: want printable ASCII only",
		"s\x00":               "httpretry: not sent: Policy.NewKey: byte 0x00 at position 1 of the key: want printable ASCII only",
		"é":                   "httpretry: not sent: Policy.NewKey: byte 0xc3 at position 0 of the key: want printable ASCII only",
		" s":                  "httpretry: not sent: Policy.NewKey: the key begins or ends with a space: want none",
	} {
		policy := every(0)
		policy.NewKey = func(*http.Request) string { return key }
		base, body := play(status(200)), contract.Counted("text")
		_, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(streamed(t, "POST", "http://a.test/", body))
		require.EqualError(t, err, want)
		assert.Empty(t, base.attempts())
	}
}
