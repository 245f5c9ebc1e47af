package repository

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNetHTTP checks docs/internals/nethttp.md. Its names are those that
// comments of the library cite, its texts are those in the code, and the rows of
// TestFaults that it names exist. If the source of net/http is there, each name
// is declared in it. TestHazards looks for the tests that it names.
func TestNetHTTP(t *testing.T) {
	text := read(t, "../../docs/internals/nethttp.md")
	t.Run("names", func(t *testing.T) { checkNames(t, rowsOf(t, text, "Names")) })
	t.Run("error texts", func(t *testing.T) {
		checkErrorTexts(t, rowsOf(t, text, "Texts that determine an Outcome"))
	})
	t.Run("other texts", func(t *testing.T) {
		for _, row := range rowsOf(t, text, "Other texts") {
			for file := range strings.SplitSeq(row[2], ", ") {
				assert.True(t, hasText(t, file, spans(row[0])[0]), "%s has no %s", file, row[0])
			}
		}
	})
}

// rowsOf returns the cells of each row of the table below a heading.
func rowsOf(t *testing.T, text, heading string) (rows [][]string) {
	_, section, ok := strings.Cut(text, "\n## "+heading+"\n")
	require.True(t, ok, "nethttp.md has no section %q", heading)
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "| `") {
			cells := strings.Split(strings.Trim(line, "|\n"), " | ")
			require.Len(t, cells, 4, line)
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	require.NotEmpty(t, rows)
	return rows
}

// spans returns the texts between backticks.
func spans(cell string) (texts []string) {
	for _, span := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		texts = append(texts, span[1])
	}
	return texts
}

// hasText reports whether a file has a text as a string literal.
func hasText(t *testing.T, file, text string) bool {
	return strings.Contains(read(t, "../../"+file), strconv.Quote(text))
}

// checkErrorTexts compares rows with the entries of errorTexts in classify.go,
// in both directions and in the same order.
func checkErrorTexts(t *testing.T, rows [][]string) {
	var documented, inCode []string
	for _, row := range rows {
		texts := append(spans(row[0]), "")
		documented = append(documented, fmt.Sprintf("%q, %q, %s", texts[0], texts[1], row[1]))
		assert.True(t, hasText(t, "test/neterrors_test.go", row[3]), "TestFaults has no %s", row[3])
	}
	code := read(t, "../../classify.go")
	for _, found := range regexp.MustCompile(`(?m)^\t(\w+) += (".*")$`).
		FindAllStringSubmatch(code, -1) {
		code = strings.ReplaceAll(code, "{"+found[1]+",", "{"+found[2]+",")
	}
	_, entries, _ := strings.Cut(code, "\nfunc errorTexts() ")
	entries, _, _ = strings.Cut(entries, "\n}\n")
	for _, entry := range regexp.MustCompile(`\{(".*"),\s+(".*"), (\w+)\}`).
		FindAllStringSubmatch(entries, -1) {
		inCode = append(inCode, strings.Join(entry[1:], ", "))
	}
	assert.Equal(t, inCode, documented)
}

// checkNames compares rows with the comments of the library, and with the
// source of net/http.
func checkNames(t *testing.T, rows [][]string) {
	declared := declaredNames(t)
	documented := map[string][]string{}
	for _, row := range rows {
		name := spans(row[0])[0]
		assert.True(t, declared(name), "%s: net/http has no %s", runtime.Version(), name)
		documented[name] = slices.Sorted(strings.SplitSeq(row[2], ", "))
	}
	comments, own := map[string]string{}, map[string]map[string]bool{}
	for _, path := range filesBelow(t, "../..", ".go") {
		if strings.HasSuffix(path, "_test.go") || isNested(path) {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, comment := range file.Comments {
			comments[path] += comment.Text()
		}
		folder := filepath.Dir(path)
		if own[folder] == nil {
			own[folder] = map[string]bool{}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				own[folder][id.Name] = true
			}
			return true
		})
	}
	cited := map[string][]string{}
	for _, path := range slices.Sorted(maps.Keys(comments)) {
		file := filepath.ToSlash(path[len("../../"):])
		for _, name := range identifier.FindAllString(comments[path], -1) {
			if isHidden(name, own[filepath.Dir(path)]) && declared(name) &&
				!slices.Contains(cited[name], file) {
				cited[name] = append(cited[name], file)
			}
		}
	}
	assert.Equal(t, cited, documented, "names in comments, and the files that have them")
}

// isNested reports whether a file belongs to a module inside this one.
func isNested(path string) bool {
	for dir := filepath.Dir(path); dir != filepath.Join("..", ".."); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return true
		}
	}
	return false
}

var identifier = regexp.MustCompile(`\b[A-Za-z]\w*(?:\.[A-Za-z]\w*)?`)

// isHidden reports whether a name in a comment is one that another package does
// not export. A single word may be an English one, so it counts only if it has
// a capital letter, and if the package of the comment does not use it.
func isHidden(name string, own map[string]bool) bool {
	first, second, isMethod := strings.Cut(name, ".")
	return !ast.IsExported(first) && strings.ToLower(name) != name && (isMethod || !own[name]) ||
		isMethod && !ast.IsExported(second)
}

// declaredNames returns a function that reports whether net/http declares a
// name. Up to Go 1.26, it has those of HTTP/2 with a prefix. It skips the test
// if there is no source of the Go that runs it.
func declaredNames(t *testing.T) func(name string) bool {
	http := parsePackage(t, "net/http", goFiles(t, "net/http"), doc.AllDecls)
	if http.Package == nil {
		t.Skip("there is no source of net/http")
	}
	http2 := parsePackage(t, "http2", goFiles(t, "net/http/internal/http2"), doc.AllDecls)
	has := func(p documented, name string) bool {
		recv, symbol, ok := strings.Cut(name, ".")
		if !ok {
			recv, symbol = "", name
		}
		return p.Package != nil && p.Parser().LookupSym(recv, symbol)
	}
	return func(name string) bool {
		return has(http, name) || has(http, "http2"+name) ||
			has(http2, strings.TrimPrefix(name, "http2"))
	}
}

// maxLinger in attempt.go is longer than the time for which net/http waits for
// the end of a request before it uses a connection again.
func TestLinger(t *testing.T) {
	var source strings.Builder
	for _, file := range goFiles(t, "net/http") {
		source.WriteString(read(t, file))
	}
	if source.Len() == 0 {
		t.Skip("there is no source of net/http")
	}
	assert.Regexp(t, `(?m)^var maxWriteWaitBeforeConnReuse = 50 \* time\.Millisecond$`,
		source.String())
	assert.Regexp(t, `(?m)^const maxLinger = 100 \* time\.Millisecond$`,
		read(t, "../../attempt.go"))
}

// goFiles returns the files of a package of the Go that runs the test.
func goFiles(t *testing.T, importPath string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(build.Default.GOROOT, "src", importPath, "*.go"))
	require.NoError(t, err)
	return files
}
