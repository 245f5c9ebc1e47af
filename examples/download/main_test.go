package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(&out), "%s", &out)
	without, with, found := strings.Cut(out.String(), "With Resume:")
	require.True(t, found)
	assert.Regexp(t, `failed after \d\.\d MiB, on attempt 1: unexpected EOF`, without)
	assert.Regexp(t, `broke off after \d+\.\d MiB: unexpected EOF; next request in \d+`, with)
	assert.Regexp(t, `complete: 32\.0 MiB, requests: \d+`, with)
	assert.Contains(t, with, "SHA-256 is equal; the link transferred 1.00 times the size")
}
