package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRewriteFile(t *testing.T) {
	tests := []struct {
		name       string
		find       finder
		text, want string
		places     int
	}{
		{
			name:   "the transport of the client",
			find:   clientTransport,
			text:   "package http\n\nfunc (c *Client) transport() RoundTripper {\n\tif c.T != nil {\n\t\treturn c.T\n\t}\n\treturn Default\n}\n",
			want:   "package http\n\nfunc (c *Client) transport() RoundTripper {\n\tif c.T != nil {\n\t\treturn HookedRoundTripper(c.T)\n\t}\n\treturn HookedRoundTripper(Default)\n}\n",
			places: 2,
		},
		{
			name:   "a call with a dot import",
			find:   roundTripCalls,
			text:   "package http_test\n\nimport . \"net/http\"\n\nfunc f() { a.b().RoundTrip(req); tr.RoundTrip(req) }\n",
			want:   "package http_test\n\nimport . \"net/http\"\n\nfunc f() { HookedRoundTripper(a.b()).RoundTrip(req); HookedRoundTripper(tr).RoundTrip(req) }\n",
			places: 2,
		},
		{
			name:   "a call in another package",
			find:   roundTripCalls,
			text:   "package p\n\nimport \"net/http\"\n\nfunc f() { tr.RoundTrip(req) }\n",
			want:   "package p\n\nimport \"net/http\"\n\nfunc f() { http.HookedRoundTripper(tr).RoundTrip(req) }\n",
			places: 1,
		},
		{
			name: "a transport that calls another",
			find: roundTripCalls,
			text: "package p\n\nfunc (t T) RoundTrip(req R) { t.base.RoundTrip(req) }\n",
			want: "package p\n\nfunc (t T) RoundTrip(req R) { t.base.RoundTrip(req) }\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "x.go")
			require.NoError(t, os.WriteFile(name, []byte(tt.text), 0o666))
			places, err := rewriteFile(name, tt.find)
			require.NoError(t, err)
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			assert.Equal(t, tt.want, string(text))
			assert.Equal(t, tt.places, places)
		})
	}
}
