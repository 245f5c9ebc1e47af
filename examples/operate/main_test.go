package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// output is what the program has printed, without that before the last call of
// next.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// await waits for a text, which may take minutes on a busy machine, and returns
// its match.
func (o *output) await(t *testing.T, pattern string) (match string) {
	t.Helper()
	require.Eventually(t, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		match = regexp.MustCompile(pattern).FindString(o.text.String())
		return match != ""
	}, 5*time.Minute, 20*time.Millisecond, pattern)
	return match
}

func (o *output) next() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Reset()
}

// The changes of the file in the README have the effects that it describes.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	changes := regexp.MustCompile("(?m)^    (\"search.test\": .*)$").
		FindAllStringSubmatch(string(readme), -1)
	effects := []string{
		`(8[5-9]|9\d|100) % ok 1\.[2-8]\d attempts 2\.\d s  0`, // attempts
		`(8[5-9]|9\d|100) % ok 1\.[2-8]\d attempts [01]\.\d s`, // timeout
		`[4-8]\d % ok 1\.[0-2]\d attempts [01]\.\d s +[1-9]`,   // budget
		`remain as they are:\n.*policies.json:\d+:39: policies\["search.test"\]\.attemptTimeot: unknown field`,
	}
	require.Len(t, changes, len(effects))

	text, err := os.ReadFile("policies.json")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "policies.json")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	var out output
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- operate(ctx, file, "127.0.0.1:0", &out) }()
	page := out.await(t, `http://\S+`)
	out.await(t, `\d % ok 1\.00 attempts`)
	for i, change := range changes {
		text = regexp.MustCompile(`"search.test":.*`).ReplaceAllLiteral(text, []byte(change[1]))
		out.next()
		require.NoError(t, os.WriteFile(file, text, 0o600))
		out.await(t, effects[i])
	}
	resp, err := http.Get(page + "?format=json")
	require.NoError(t, err)
	defer resp.Body.Close()
	state, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Contains(t, string(state), `"origin": "http://`+tuned+`"`)
	cancel()
	require.NoError(t, <-ended)
}

// The program does not start with policies that are not valid.
func TestStartFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policies.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"default": {"maxAttemps": 2}}`), 0o600))
	var out strings.Builder
	err := operate(t.Context(), file, "127.0.0.1:0", &out)
	assert.ErrorContains(t, err, "default.maxAttemps: unknown field")
	assert.Empty(t, out.String())
}
