package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/examples/internal/frametest"
	"github.com/seed421102f4/httpretry/internal/contract"
)

func launch(t *testing.T, ctx context.Context, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	frametest.LeavesNothing(t, func() { code = run(ctx, args, &out, &errs) })
	return code, out.String(), errs.String()
}

func TestDemonstration(t *testing.T) {
	code, stdout, stderr := launch(t, t.Context())
	require.Equal(t, 0, code, "%s%s", stdout, stderr)
	assert.Empty(t, stderr)
	without, with, found := strings.Cut(stdout, "With Resume:")
	require.True(t, found)
	assert.Regexp(t, `failed after \d\.\d MiB, on attempt 1: unexpected EOF`, without)
	assert.Regexp(t, `broke off after \d+\.\d MiB: unexpected EOF; next request in \d+`, with)
	assert.Regexp(t, `complete: 32\.0 MiB, requests: \d+`, with)
	assert.Contains(t, with, "SHA-256 is equal; the link transferred 1.00 times the size")
}

func TestOwnFile(t *testing.T) {
	srv := contract.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte("content"))
	})
	file := filepath.Join(t.TempDir(), "file")
	code, stdout, stderr := launch(t, t.Context(), "-url", srv.URL, "-o", file)
	require.Equal(t, 0, code, stderr)
	assert.Contains(t, stdout, "complete: 0.0 MiB, requests: 1")
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "content", string(content))

	code, _, stderr = launch(t, t.Context(), "-url", srv.URL+"/else", "-o", file+"2")
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr, "404")
	assert.NoFileExists(t, file+"2")
	assert.NoFileExists(t, file+"2.part")
	code, _, _ = launch(t, t.Context(), "-url", srv.URL)
	assert.Equal(t, 0, code)
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{{"file"}, {"-n", "1"}, {"-o", "file"}} {
		code, stdout, stderr := launch(t, t.Context(), args...)
		assert.Equal(t, 2, code)
		assert.Empty(t, stdout)
		assert.Contains(t, stderr, "download -h for help")
	}
	code, stdout, _ := launch(t, t.Context(), "-h")
	assert.Equal(t, 0, code)
	assert.Contains(t, stdout, "Usage:")
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, stdout, _ := launch(t, ctx)
	assert.Equal(t, 130, code)
	assert.Contains(t, stdout, "Interrupted.\n")
}

// On a terminal, the next line replaces the bar.
func TestProgressBar(t *testing.T) {
	var out bytes.Buffer
	s := &screen{Writer: &out, terminal: true}
	_, err := s.bar(100).Write(make([]byte, 50))
	require.NoError(t, err)
	assert.Contains(t, out.String(), "["+strings.Repeat("#", 20)+strings.Repeat(" ", 20)+"]")
	_, err = s.Write([]byte("text\n"))
	require.NoError(t, err)
	assert.True(t, strings.HasSuffix(out.String(), "\r\x1b[Ktext\n"))
}
