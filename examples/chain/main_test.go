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
	require.NoError(t, show(&out, outages(), recoveries()))
	for _, lines := range []string{
		`3 services
  without Middleware +27 +1 → 3 → 9 → 27
  with Middleware +7 +1 → 3 → 5 → 7
5 services
  without Middleware +243 +1 → 3 → 9 → 27 → 81 → 243
  with Middleware +11 +1 → 3 → 5 → 7 → 9 → 11
`,
		`fails only once:
200 after 2 calls without Middleware, 200 after 2 calls with it\.`,
	} {
		assert.Regexp(t, lines, out.String())
	}
}

func TestUnexpectedNumbersAreAnError(t *testing.T) {
	multiplying, recovering := outages()[1], outages()[1]
	multiplying.wrap = without
	recovering.failures = 2
	for want, e := range map[string]experiment{
		"got status 502 and 1 → 3 → 9 → 27 requests": multiplying,
		"got status 200 and 1 → 1 → 1 → 3 requests":  recovering,
	} {
		want = "3 services with Middleware: " + want + ", expected 502 and 1 → 3 → 5 → 7"
		assert.EqualError(t, show(io.Discard, []experiment{e}, nil), want)
		assert.EqualError(t, show(io.Discard, nil, []experiment{e}), want)
	}
}
