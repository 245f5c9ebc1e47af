package httpretry_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// Hazard J1, J3: methods and keys that make a request idempotent.
func TestIdempotent(t *testing.T) {
	for method, want := range map[string]bool{
		"": true, "GET": true, "HEAD": true, "OPTIONS": true, "TRACE": true, "PUT": true,
		"DELETE": true, "QUERY": true,
		"POST": false, "PATCH": false, "CONNECT": false, "get": false, "Put": false,
		"PROPFIND": false,
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
		{"empty, and one in lower case",
			http.Header{"Idempotency-Key": {""}, "idempotency-key": {"k"}}, false},
		{"empty, and another key", http.Header{"Idempotency-Key": {""}, "x-idempotency-key": {"k"}},
			true},
		{"another of that length", http.Header{"Idempotency-Kex": {"k"}}, false},
	} {
		req := &http.Request{Method: "POST", Header: tt.header}
		assert.Equal(t, tt.want, httpretry.Idempotent(req), tt.name)
	}
}

// Hazard J4: keys are long and differ.
func TestRandomKey(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		key := httpretry.RandomKey(nil)
		assert.GreaterOrEqual(t, len(key), 26, "26 characters of base32 are 130 bits")
		assert.False(t, seen[key])
		seen[key] = true
	}
}

// Hazard J2, J3, J8: a key is made once for each request that needs one. The
// request is not modified.
func TestNewKey(t *testing.T) {
	made := 0
	policy := contract.RetryEvery(0)
	policy.NewIdempotencyKey = func(*http.Request) string {
		made++
		return httpretry.RandomKey(nil)
	}
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
			base := contract.Play(s503, reset, s201)
			req := contract.Request(t, tt.method, "http://a.test/", "text")
			req.Header = tt.header
			contract.Send(t, contract.With(t, base, policy), req)
			require.Len(t, base.Attempts(), 3)
			assert.Equal(t, tt.made, made)
			key := base.Attempts()[0].Header["Idempotency-Key"]
			for _, a := range base.Attempts() {
				assert.Equal(t, key, a.Header["Idempotency-Key"], "the same on each attempt")
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

// A key may have any printable byte, and a space inside. An empty key is none. A
// 409 is retried for a key that the policy has made.
func TestKeysThatAreSent(t *testing.T) {
	var all []byte
	for b := byte('~'); b > ' '; b-- {
		all = append(all, b, ' ')
	}
	printable := strings.TrimSpace(string(all))
	for key, want := range map[string][]string{"": nil, printable: {printable}} {
		policy := contract.RetryEvery(0)
		policy.NewIdempotencyKey = func(*http.Request) string { return key }
		base, attempts := contract.Play(s409), 1
		if key != "" {
			attempts = 5
		}
		contract.Send(t, contract.With(t, base, policy),
			contract.Request(t, "POST", "http://a.test/", "text"))
		assert.Equal(t, want, base.Attempts()[0].Header["Idempotency-Key"])
		assert.Len(t, base.Attempts(), attempts, key)
	}
}

// Hazard J5, J7: a key that is not a valid header value is an error, whose text
// does not contain the key.
func TestBadKey(t *testing.T) {
	for key, want := range map[string]string{
		"secret\r\nX-Evil: 1": "byte 0x0d at position 6 of the key: want printable ASCII only",
		"s\x00":               "byte 0x00 at position 1 of the key: want printable ASCII only",
		"é":                   "byte 0xc3 at position 0 of the key: want printable ASCII only",
		"s\x7f":               "byte 0x7f at position 1 of the key: want printable ASCII only",
		" s":                  "the key begins or ends with a space: want none",
	} {
		policy := contract.RetryEvery(0)
		policy.NewIdempotencyKey = func(*http.Request) string { return key }
		base, body := contract.Play(s200), contract.Counted("text")
		_, err := contract.With(t, base, policy).
			RoundTrip(contract.Streamed(t, "POST", "http://a.test/", body))
		require.EqualError(t, err, "httpretry: not sent: Policy.NewIdempotencyKey: "+want)
		assert.Empty(t, base.Attempts())
	}
}
