package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRetriesAddUp(t *testing.T) {
	var out strings.Builder
	require.NoError(t, show(&out, experiments()))
	assert.Regexp(t, `3 services without Middleware +27 +1 → 3 → 9 → 27
3 services with Middleware +7 +1 → 3 → 5 → 7
5 services without Middleware +243 +1 → 3 → 9 → 27 → 81 → 243
5 services with Middleware +11 +1 → 3 → 5 → 7 → 9 → 11
`, out.String())
	assert.Contains(t, out.String(), "200 after 2 calls without Middleware, 200 after 2 calls with it.")

	unexpected := experiments()[1]
	unexpected.wrap = without
	assert.EqualError(t, show(io.Discard, []experiment{unexpected}), "3 services with Middleware: "+
		"got status 502 and 1 → 3 → 9 → 27 requests, expected 502 and 1 → 3 → 5 → 7")
}
