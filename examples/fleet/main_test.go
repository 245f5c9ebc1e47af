package main

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(&out, 20, 3))
	t.Log(out.String())
	var loads []float64
	for _, m := range regexp.MustCompile(`  20 processes,    60 requests, .* load (.*)`).FindAllStringSubmatch(out.String(), -1) {
		load, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		loads = append(loads, load)
	}
	require.Len(t, loads, 2)
	assert.Equal(t, 2.67, loads[0], "five retries of each process")
	// Five retries of all processes, and those of a process that did not reach
	// Redis in time.
	assert.InDelta(t, 1.3, loads[1], 0.3)
}
