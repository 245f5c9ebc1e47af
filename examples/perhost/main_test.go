package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEachHostIsTreatedAsItsPolicySays(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(&out), "%s", &out)
	for _, line := range []string{
		`api.example.test +POST /charge +200 +2 +2 requests, charged 1×`,
		`search.example.test +GET /\?q=retry +200 +3 +3 requests`,
		`eu.cdn.example.test +GET /logo.png +503 +1 +1 request`,
		`us.cdn.example.test +GET /logo.png +200 +1 +1 request`,
	} {
		assert.Regexp(t, `(?m)^`+line+`$`, out.String())
	}
	assert.NotContains(t, out.String(), "ap.cdn", "the mirror before it succeeded")
}
