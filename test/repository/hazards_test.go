package repository

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	hazardCode  = regexp.MustCompile(`\b(?:[A-K]\d*|\d\.\d+)\b`)
	hazardCited = regexp.MustCompile(
		`\b[Hh]azards? ((?:` + hazardCode.String() + `(?:, | and | to )?)+)`)
	testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`")
)

// TestHazards checks docs/internals/hazards.md against all tests of the
// repository, those of nested modules included. Each code in a comment has an
// entry. Each entry names tests, all of which exist, and all tests whose
// comments cite it. Limits, L1 and so on, need no tests. The tests that the
// other documents beside it name exist, too.
func TestHazards(t *testing.T) {
	doc := read(t, "../../docs/internals/hazards.md")
	cited, tests := readTests(t)
	require.NotEmpty(t, cited)

	entries := map[string]string{}
	for _, entry := range strings.Split(doc, "\n- **")[1:] {
		code, text, _ := strings.Cut(entry, ". ")
		assert.NotContains(t, entries, code, "hazards.md has two entries %s", code)
		entries[code] = text
		limit := strings.HasPrefix(code, "L")
		assert.True(t, limit || testName.MatchString(text),
			"hazards.md: entry %s names no test", code)
	}
	for _, file := range filesBelow(t, "../../docs/internals", ".md") {
		for _, name := range testName.FindAllStringSubmatch(read(t, file), -1) {
			_, exists := tests[name[1]]
			assert.True(t, exists, "%s names %s, which does not exist", file, name[1])
		}
	}
	for code, position := range cited {
		assert.NotEmpty(t, entries[code], "%s: hazards.md has no entry %s", position, code)
	}
	for name, codes := range tests {
		for _, code := range codes {
			assert.Contains(t, entries[code], "`"+name+"`",
				"hazards.md: entry %s does not name %s, which cites it", code, name)
		}
	}
}

// readTests returns the codes that comments of all tests cite, with the
// position of one comment, and the tests, with the codes that the comment of
// each cites.
func readTests(t *testing.T) (cited map[string]string, tests map[string][]string) {
	t.Helper()
	cited, tests = map[string]string{}, map[string][]string{}
	for _, path := range filesBelow(t, "../..", "_test.go") {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil &&
				testName.MatchString("`"+fn.Name.Name+"`") {
				tests[fn.Name.Name] = append(tests[fn.Name.Name], codesIn(fn.Doc)...)
			}
		}
		for _, comment := range file.Comments {
			for _, code := range codesIn(comment) {
				cited[code] = fset.Position(comment.Pos()).String()
			}
		}
	}
	return cited, tests
}

// codesIn returns the codes that a comment cites. The comment may be nil.
func codesIn(comment *ast.CommentGroup) (codes []string) {
	text := strings.Join(strings.Fields(comment.Text()), " ") // a list of codes may be wrapped
	for _, list := range hazardCited.FindAllStringSubmatch(text, -1) {
		codes = append(codes, hazardCode.FindAllString(list[1], -1)...)
	}
	return codes
}
