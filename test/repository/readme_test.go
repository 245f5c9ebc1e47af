package repository

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadmeSize limits the README to what a reader takes in.
func TestReadmeSize(t *testing.T) {
	lines := strings.Split(strings.TrimSuffix(readme(t), "\n"), "\n")
	assert.LessOrEqual(t, len(lines), 200)
	for i, line := range lines {
		assert.LessOrEqual(t, utf8.RuneCountInString(line), 120, "README.md:%d", i+1)
	}
}

// TestReadmePrograms checks that CI compiles and runs the code in the README
// and in the recipes: a program is run here, and other code is part of an
// example.
func TestReadmePrograms(t *testing.T) {
	recipes, err := os.ReadFile("../../docs/recipes.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").
		FindAllStringSubmatch(readme(t)+string(recipes), -1)
	require.NotEmpty(t, blocks)
	sources := exampleSources(t)
	programs := 0
	for _, block := range blocks {
		code := block[1]
		if strings.HasPrefix(code, "package main\n") {
			programs++
			assert.Equal(t, "200 OK attempts: 2\n", runWithProxy(t, code))
			continue
		}
		assert.True(t, containsCode(sources, code),
			"neither example_test.go nor a file in examples contains this code of README.md or "+
				"recipes.md:\n%s", code)
	}
	assert.Equal(t, 1, programs)
}

// TestReadmeLinks checks that the files exist to which the documents link.
func TestReadmeLinks(t *testing.T) {
	documents, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	for _, name := range append(documents, "../../README.md", "../../CONTRIBUTING.md") {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		prose := regexp.MustCompile("(?ms)^```.*?^```").ReplaceAllString(string(text), "")
		for _, link := range regexp.MustCompile(`\]\(([^)#:]+)[^):]*\)`).
			FindAllStringSubmatch(prose, -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(name), link[1]))
			assert.NoError(t, err, "%s links to %s", name, link[1])
		}
	}
}

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	return string(text)
}

// exampleSources returns the files whose code the README may show.
func exampleSources(t *testing.T) []string {
	t.Helper()
	paths := []string{"../../example_test.go"}
	require.NoError(t,
		filepath.WalkDir("../../examples", func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") {
				paths = append(paths, path)
			}
			return err
		}))
	var sources []string
	for _, path := range paths {
		source, err := os.ReadFile(path)
		require.NoError(t, err)
		sources = append(sources, string(source))
	}
	return sources
}

// containsCode reports whether one of sources contains the lines of code one
// after another. Indentation and empty lines do not count.
func containsCode(sources []string, code string) bool {
	want := normalizeCode(code)
	for _, source := range sources {
		if strings.Contains(normalizeCode(source), want) {
			return true
		}
	}
	return false
}

func normalizeCode(code string) string {
	var b strings.Builder
	b.WriteByte('\n')
	for line := range strings.Lines(code) {
		// gofmt aligns columns by the lines around them.
		if fields := strings.Fields(line); len(fields) > 0 {
			b.WriteString(strings.Join(fields, " ") + "\n")
		}
	}
	return b.String()
}

// runWithProxy runs a program whose requests go through a proxy, which fails
// the first one, and returns the program's output.
func runWithProxy(t *testing.T, code string) string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the go command is needed:", err)
	}
	failures := 1
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.True(t, r.URL.IsAbs(), "not a request to a proxy: %v", r.URL)
		if failures--; failures >= 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer proxy.Close()

	folder := t.TempDir()
	source, binary := filepath.Join(folder, "main.go"), filepath.Join(folder, "program")
	if runtime.GOOS == "windows" {
		binary += ".exe"
	}
	require.NoError(t, os.WriteFile(source, []byte(code), 0o600))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, source)
	build.Dir = "../.." // so that the module is known
	output, err := build.CombinedOutput()
	require.NoError(t, err, "%s", output)

	program := exec.CommandContext(t.Context(), binary)
	program.Env = append(os.Environ(), "HTTP_PROXY="+proxy.URL, "http_proxy="+proxy.URL,
		"NO_PROXY=", "no_proxy=")
	output, err = program.CombinedOutput()
	require.NoError(t, err, "%s", output)
	return string(output)
}
