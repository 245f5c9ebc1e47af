package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// run compares each line with the one that visits has for it.
func TestEachHostIsTreatedAsItsPolicySays(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(&out), "%s", &out)
	assert.Equal(t, 5, strings.Count(out.String(), "\n"), "%s", &out)
	assert.NotContains(t, out.String(), "ap.cdn", "the mirror before it succeeded")
}
