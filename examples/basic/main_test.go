package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/examples/internal/frametest"
)

func TestRun(t *testing.T) {
	var out strings.Builder
	frametest.LeavesNothing(t, func() { require.NoError(t, run(&out)) })
	assert.Equal(t, `The server answers 503.
The server answers 503.
The server answers 200.
The client got 200 OK.
`, out.String())
}
