package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// await reads lines until one matches, and returns the match.
func await(t *testing.T, lines *bufio.Scanner, pattern string) string {
	t.Helper()
	for lines.Scan() {
		if match := regexp.MustCompile(pattern).FindString(lines.Text()); match != "" {
			return match
		}
	}
	require.Fail(t, "the output ended", "before %s", pattern)
	return ""
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
		`policies.json:\d+:39: policies\["search.test"\]\.attemptTimeot: unknown field`,
	}
	require.Len(t, changes, len(effects))

	text, err := os.ReadFile("policies.json")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "policies.json")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	out, in := io.Pipe()
	defer time.AfterFunc(5*time.Minute, func() { out.Close() }).Stop() // on a busy machine
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- operate(ctx, file, "127.0.0.1:0", in) }()
	lines := bufio.NewScanner(out)
	page := await(t, lines, `http://\S+`)
	await(t, lines, `\d % ok 1\.00 attempts`)
	for i, change := range changes {
		text = regexp.MustCompile(`"search.test":.*`).ReplaceAllLiteral(text, []byte(change[1]))
		require.NoError(t, os.WriteFile(file, text, 0o600))
		if i == len(changes)-1 { // with a mistake
			await(t, lines, "All policies remain as they are:")
		}
		await(t, lines, effects[i])
	}
	out.Close()
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
