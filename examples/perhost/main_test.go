package main

import (
	"bytes"
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/examples/internal/frametest"
)

// launch runs the program and fails the test if it leaves a goroutine behind.
func launch(t *testing.T, ctx context.Context, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	frametest.LeavesNothing(t, func() { code = program.Run(ctx, args, &out, &errs) })
	return code, out.String(), errs.String()
}

func TestEachHostIsTreatedAsItsPolicySays(t *testing.T) {
	code, stdout, stderr := launch(t, t.Context())
	require.Equal(t, 0, code, "%s%s", stdout, stderr)
	assert.Empty(t, stderr)
	for _, line := range []string{
		`api.example.test +POST /charge +200 +2 +2 requests, charged 1×$`,
		`search.example.test +GET /\?q=retry +200 +3 +3 requests$`,
		`eu.cdn.example.test +GET /logo.png +503 +1 +1 request$`,
		`us.cdn.example.test +GET /logo.png +200 +1 +1 request$`,
	} {
		assert.Regexp(t, regexp.MustCompile(`(?m)^`+line), stdout)
	}
	assert.NotContains(t, stdout, "ap.cdn", "the mirror before it succeeded")
}

func TestArgumentsAreRefused(t *testing.T) {
	for _, args := range [][]string{{"search"}, {"-n", "1"}} {
		code, stdout, stderr := launch(t, t.Context(), args...)
		assert.Equal(t, 2, code)
		assert.Empty(t, stdout)
		assert.Contains(t, stderr, "perhost -h for help")
	}
	code, stdout, stderr := launch(t, t.Context(), "-h")
	assert.Equal(t, 0, code)
	assert.Contains(t, stdout, "Usage:")
	assert.Empty(t, stderr)
}

func TestInterrupted(t *testing.T) {
	// The first search takes until its AttemptTimeout of 400 ms.
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	code, stdout, stderr := launch(t, ctx)
	assert.Equal(t, 130, code)
	assert.Contains(t, stdout, "Interrupted.\n")
	assert.NotContains(t, stdout, "us.cdn")
	assert.Empty(t, stderr)
}
