package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	hazardCode  = regexp.MustCompile(`\b(?:[A-K]\d*|\d\.\d+)\b`)
	hazardCited = regexp.MustCompile(`\b[Hh]azards? ((?:` + hazardCode.String() + `(?:, | and | to )?)+)`)
	testName    = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`")
)

// TestHazards checks docs/hazards.md against all tests of the repository, those
// of nested modules included: each code in a comment has an entry, and each
// entry names tests, all of which exist. Limits, L1 and so on, need none.
func TestHazards(t *testing.T) {
	data, err := os.ReadFile("../docs/hazards.md")
	require.NoError(t, err)
	doc := string(data)
	cited, tests := map[string]string{}, map[string]bool{}
	require.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		return readTests(path, cited, tests)
	}))
	require.NotEmpty(t, cited)

	entries := map[string]bool{}
	for _, entry := range strings.Split(doc, "\n- **")[1:] {
		code, text, _ := strings.Cut(entry, ". ")
		assert.False(t, entries[code], "docs/hazards.md has two entries %s", code)
		entries[code] = true
		limit := strings.HasPrefix(code, "L")
		assert.True(t, limit || testName.MatchString(text), "docs/hazards.md: entry %s names no test", code)
	}
	for _, name := range testName.FindAllStringSubmatch(doc, -1) {
		assert.True(t, tests[name[1]], "docs/hazards.md names %s, which does not exist", name[1])
	}
	for code, position := range cited {
		assert.True(t, entries[code], "%s: docs/hazards.md has no entry %s", position, code)
	}
}

// readTests adds the codes that comments of a file cite, and its functions.
func readTests(path string, cited map[string]string, tests map[string]bool) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	for _, decl := range file.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
			tests[fn.Name.Name] = true
		}
	}
	for _, comment := range file.Comments {
		text := strings.Join(strings.Fields(comment.Text()), " ") // a list of codes may be wrapped
		for _, list := range hazardCited.FindAllStringSubmatch(text, -1) {
			for _, code := range hazardCode.FindAllString(list[1], -1) {
				cited[code] = fset.Position(comment.Pos()).String()
			}
		}
	}
	return nil
}
