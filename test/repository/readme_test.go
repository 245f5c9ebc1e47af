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
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/faults"
)

// TestReadmeBegins checks that the README's first ten lines have the command
// that installs the module, and the version of Go in go.mod.
func TestReadmeBegins(t *testing.T) {
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "../../go.mod"))
	begin := strings.Join(strings.Split(read(t, "../../README.md"), "\n")[:10], "\n")
	assert.Contains(t, begin, "    go get "+module+" ")
	assert.Contains(t, begin, "# Go "+version[1]+" or later")
}

// TestReadmePrograms checks that CI compiles and runs the code in the README
// and in the recipes. A program is run here. Other code is part of an example.
func TestReadmePrograms(t *testing.T) {
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(
		read(t, "../../README.md")+read(t, "../../docs/recipes.md"), -1)
	require.NotEmpty(t, blocks)
	var examples strings.Builder
	examples.WriteString(withoutSpace(read(t, "../../example_test.go")))
	for _, folder := range []string{"../../examples", "../../docs/recipes"} {
		for _, file := range filesBelow(t, folder, ".go") {
			examples.WriteString(withoutSpace(read(t, file)))
		}
	}
	programs := 0
	for _, block := range blocks {
		if strings.HasPrefix(block[1], "package main\n") {
			programs++
			assert.Equal(t, "200 OK attempts: 2\n", runWithProxy(t, block[1]))
			continue
		}
		assert.True(t, strings.Contains(examples.String(), withoutSpace(block[1])),
			"neither example_test.go nor a file in examples or docs/recipes contains this code of "+
				"README.md or recipes.md:\n%s", block[1])
	}
	assert.Equal(t, 1, programs)
}

// TestReadmeComparison checks that the README's comparison has the rows of the
// results.
func TestReadmeComparison(t *testing.T) {
	rows := func(name string) (names []string, byCase map[string][]string) {
		byCase = map[string][]string{}
		for line := range strings.Lines(read(t, name)) {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "| "), " | ")
			switch {
			case cells[0] == "case":
				names = cells
			case strings.HasPrefix(line, "| ") && len(cells) == len(names):
				byCase[cells[0]] = cells
			}
		}
		return names, byCase
	}
	names, ours := rows("../../README.md")
	resultNames, results := rows("../../conformance/RESULTS.md")
	compared := 0
	for id, row := range ours {
		result, ok := results[id]
		if !ok {
			continue
		}
		compared++
		want := []string{id}
		for _, name := range names[1:] {
			want = append(want, result[slices.Index(resultNames, name)])
		}
		assert.Equal(t, want, row)
	}
	assert.Equal(t, 8, compared)
}

// withoutSpace returns code without its indentation, its empty lines and the
// alignment of its columns, which depends on the lines around them.
func withoutSpace(code string) string {
	var b strings.Builder
	for line := range strings.Lines("\n" + code) {
		if fields := strings.Fields(line); len(fields) > 0 {
			b.WriteString("\n" + strings.Join(fields, " "))
		}
	}
	return b.String() + "\n"
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

	program := faults.Command(t, binary)
	program.Env = append(os.Environ(), "HTTP_PROXY="+proxy.URL, "http_proxy="+proxy.URL,
		"NO_PROXY=", "no_proxy=")
	output, err = program.CombinedOutput()
	require.NoError(t, err, "%s", output)
	return string(output)
}

// TestLinks checks that the files exist to which documents link, and the
// headings in them.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^):#]*)(#[^)]*)?\)`)
	links := 0
	for _, name := range filesBelow(t, "../..", ".md") {
		for _, match := range link.FindAllStringSubmatch(withoutCode(read(t, name)), -1) {
			links++
			target := name
			if match[1] != "" {
				target = filepath.Join(filepath.Dir(name), match[1])
			}
			if _, err := os.Stat(target); assert.NoError(t, err, "%s", name) && match[2] != "" {
				assert.Contains(t, anchors(read(t, target)), match[2],
					"%s links to %s", name, match[0])
			}
		}
	}
	assert.Greater(t, links, 100)
}

func withoutCode(markdown string) string {
	return regexp.MustCompile("(?ms)^```.*?^```").ReplaceAllString(markdown, "")
}

// anchors returns the anchors of the headings, as GitHub makes them.
func anchors(markdown string) (all []string) {
	heading := regexp.MustCompile(`(?m)^#+ (.*)$`)
	for _, match := range heading.FindAllStringSubmatch(withoutCode(markdown), -1) {
		text := regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(match[1], "$1")
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, text)
		all = append(all, "#"+anchor)
	}
	return all
}

// read returns the text of a file.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// filesBelow returns the files below a folder whose names end with suffix, but
// none of other projects.
func filesBelow(t *testing.T, folder, suffix string) (files []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if e != nil && e.Name() == "node_modules" {
			return fs.SkipDir
		}
		if err == nil && strings.HasSuffix(path, suffix) {
			files = append(files, path)
		}
		return err
	}))
	return files
}
