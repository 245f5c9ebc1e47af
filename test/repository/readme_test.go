package repository

import (
	"fmt"
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
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/faults"
)

// TestReadmeWidth limits the README to 120 columns, in code and tables, too.
func TestReadmeWidth(t *testing.T) {
	lines := strings.Split(strings.TrimSuffix(readme(t), "\n"), "\n")
	for i, line := range lines {
		assert.LessOrEqual(t, utf8.RuneCountInString(line), 120, "README.md:%d", i+1)
	}
}

// TestReadmeBegins checks that the README's first ten lines have the sentence,
// the command, the version of Go, the reference, the program and the badges.
func TestReadmeBegins(t *testing.T) {
	mod := document(t, "go.mod")
	module := regexp.MustCompile(`(?m)^module (\S+)$`).FindStringSubmatch(mod)[1]
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(mod)[1]
	begin := strings.Join(strings.Split(readme(t), "\n")[:10], "\n")
	for _, want := range []string{
		"httpretry is an `http.RoundTripper`", "    go get " + module + " ",
		"# Go " + version + " or later", "](https://pkg.go.dev/" + module + ")", "```go",
		"[![Reference][1]]", "[![CI][2]]", "[![Go][3]]", "[![MIT][4]]",
	} {
		assert.Contains(t, begin, want)
	}
	repository := strings.TrimPrefix(module, "github.com/")
	for i, want := range []string{
		module + ".svg", module + "/actions/workflows/ci.yml/badge.svg",
		"go-version/" + repository, "license/" + repository,
	} {
		assert.Regexp(t, fmt.Sprintf(`(?m)^\[%d\]: https://\S*%s`, i+1, regexp.QuoteMeta(want)),
			readme(t))
	}
}

// TestReadmeContrast checks the seven rows beside go-retryablehttp. They are
// directly below the program, and bench/behavior has each cell. A cell is
// marked as worse if the row there is not judged.
func TestReadmeContrast(t *testing.T) {
	_, after, found := strings.Cut(readme(t), "```go\n")
	require.True(t, found)
	_, after, found = strings.Cut(after, "```\n\n|")
	require.True(t, found, "the table is not below the program")
	table, _, _ := strings.Cut(after, "\n\n")
	rows := tableRows("|" + table)
	require.Len(t, rows, 2+7)
	assert.Equal(t, []string{"httpretry", "go-retryablehttp"}, rows[0][1:])

	behavior := tableRows(document(t, "bench/behavior/README.md"))
	require.NotEmpty(t, behavior)
	assert.Contains(t, readme(t), fmt.Sprintf("has %d such rows", len(behavior)-2))
	ours, theirs := -1, -1
	for i, title := range behavior[0] {
		if strings.HasPrefix(title, "httpretry ") {
			ours = i
		}
		if strings.HasPrefix(title, "go-retryablehttp ") {
			theirs = i
		}
	}
	for _, row := range rows[2:] {
		at := slices.IndexFunc(behavior, func(b []string) bool {
			return strings.HasPrefix(row[0], b[0])
		})
		require.Positive(t, at, "bench/behavior has no row %q", row[0])
		cell, worse := strings.CutPrefix(row[1], "worse: ")
		assert.Regexp(t, wholly(cell), behavior[at][ours], row[0])
		assert.Regexp(t, wholly(row[2]), behavior[at][theirs], row[0])
		assert.Equal(t, behavior[at][1] == "not judged", worse, row[0])
	}
}

// wholly returns a regular expression for text that no part of a word or of a
// number is beside: "0 %" is no part of "100 %".
func wholly(text string) string {
	return `(^|[ ,])` + regexp.QuoteMeta(text) + `($|[ ,])`
}

// tableRows returns the cells of all rows of tables in Markdown.
func tableRows(text string) [][]string {
	var rows [][]string
	for line := range strings.Lines(text) {
		cells, found := strings.CutPrefix(strings.TrimSpace(line), "|")
		if !found {
			continue
		}
		var row []string
		for cell := range strings.SplitSeq(strings.TrimSuffix(cells, "|"), "|") {
			row = append(row, strings.TrimSpace(cell))
		}
		rows = append(rows, row)
	}
	return rows
}

// TestOneFigure checks that a fact has the same figure everywhere. The first
// document of each row is the one that has the command.
func TestOneFigure(t *testing.T) {
	for _, fact := range []struct {
		figure    string // a regular expression
		documents []string
	}{
		{`(no retries \||Without retries it recovers after) 30 to 37 s`,
			[]string{"docs/choosing.md", "README.md"}},
		{`\b51 to 66 s\b`, []string{"docs/choosing.md", "README.md"}},
		{`\bnot within nine minutes\b`, []string{"docs/choosing.md", "README.md"}},
		{`\b99\.2 %`, []string{"docs/choosing.md", "budget.go"}},
		{`\b89\.2 %`, []string{"docs/choosing.md", "budget.go"}},
		{`\b692\b`, []string{"integration/README.md", "README.md"}},
		{`\b27\b.*\b7\b`, []string{"examples/chain/main.go", "docs/choosing.md", "README.md"}},
	} {
		for _, name := range fact.documents {
			text := strings.Join(strings.Fields(document(t, name)), " ")
			assert.Regexp(t, fact.figure, text, name)
		}
	}

	measured := document(t, "bench/README.md")
	times := regexp.MustCompile(`\b([\d,]+) ns\b`).FindAllStringSubmatch(readme(t), -1)
	require.NotEmpty(t, times)
	for _, found := range times {
		assert.Regexp(t, `[ |]`+found[1]+` (\([^)]*\) )?ns`, measured, "bench/README.md")
	}
}

// document returns a file of the repository.
func document(t *testing.T, name string) string {
	t.Helper()
	root := ".."
	for range 3 {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		root = filepath.Join(root, "..")
	}
	text, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return string(text)
}

// TestReadmePrograms checks that CI compiles and runs the code in the README
// and in the recipes. A program is run here. Other code is part of an example.
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
			"neither example_test.go nor a file in examples or docs/recipes contains this code of "+
				"README.md or recipes.md:\n%s", code)
	}
	assert.Equal(t, 1, programs)
}

// TestLinks checks that the files exist to which documents link, and the
// headings in them.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^):#]*)(#[^)]*)?\)`)
	links := 0
	for _, name := range documents(t) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, match := range link.FindAllStringSubmatch(withoutCode(string(text)), -1) {
			links++
			target := name
			if match[1] != "" {
				target = filepath.Join(filepath.Dir(name), match[1])
			}
			if _, err := os.Stat(target); !assert.NoError(t, err, "%s", name) || match[2] == "" {
				continue
			}
			linked, err := os.ReadFile(target)
			require.NoError(t, err)
			assert.Contains(t, anchors(string(linked)), match[2], "%s links to %s", name, match[0])
		}
	}
	assert.Greater(t, links, 100)
}

// documents returns the names of all Markdown files.
func documents(t *testing.T) (names []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			names = append(names, path)
		}
		return err
	}))
	return names
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
	for _, folder := range []string{"../../examples", "../../docs/recipes"} {
		require.NoError(t,
			filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
				if err == nil && strings.HasSuffix(path, ".go") {
					paths = append(paths, path)
				}
				return err
			}))
	}
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

	program := faults.Command(t, binary)
	program.Env = append(os.Environ(), "HTTP_PROXY="+proxy.URL, "http_proxy="+proxy.URL,
		"NO_PROXY=", "no_proxy=")
	output, err = program.CombinedOutput()
	require.NoError(t, err, "%s", output)
	return string(output)
}
