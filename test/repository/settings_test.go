package repository

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

// TestSettingsHaveTests checks docs/tests.md. Each field of Policy and Config,
// and each Reason, has a row. A row names tests that exist, once each, and at
// least one of them uses the field or the Reason.
func TestSettingsHaveTests(t *testing.T) {
	rows := readSettings(t)
	want := map[string]bool{}
	for _, config := range []reflect.Type{
		reflect.TypeFor[httpretry.Policy](), reflect.TypeFor[httpretry.Config](),
	} {
		for _, field := range reflect.VisibleFields(config) {
			if field.IsExported() {
				want[config.Name()+"."+field.Name] = true
			}
		}
	}
	for _, reason := range reasons(t) {
		want["Reason."+reason] = true
	}
	for name := range want {
		_, ok := rows[name]
		assert.True(t, ok, "docs/tests.md has no row for %s", name)
	}
	used := namesInTests(t)
	for name, tests := range rows {
		assert.True(t, want[name], "docs/tests.md has a row for %s, which does not exist", name)
		assert.NotEmpty(t, tests, "docs/tests.md: %s has no test", name)
		_, last, _ := strings.Cut(name, ".")
		seen, uses := map[string]bool{}, false
		for _, test := range tests {
			assert.NotNil(t, used[test], "docs/tests.md: %s: there is no %s", name, test)
			assert.False(t, seen[test], "docs/tests.md: %s has %s twice", name, test)
			seen[test] = true
			uses = uses || used[test][last]
		}
		assert.True(t, uses, "docs/tests.md: no test of %s uses it", name)
	}
}

// readSettings returns the tests in each row of docs/tests.md. The names of
// rows have the title of their table before them: "Policy.Budget".
func readSettings(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/tests.md")
	require.NoError(t, err)
	rows, table := map[string][]string{}, ""
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (.*) \\|$")
	for _, cells := range row.FindAllStringSubmatch(string(text), -1) {
		if cells[2] == "tests" {
			table = cells[1]
			continue
		}
		name := table + "." + cells[1]
		assert.NotContains(t, rows, name, "docs/tests.md has two rows for %s", name)
		rows[name] = nil
		for _, test := range testName.FindAllStringSubmatch(cells[2], -1) {
			rows[name] = append(rows[name], test[1])
		}
	}
	return rows
}

// reasons returns the names of the constants of type Reason.
func reasons(t *testing.T) (names []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../event.go", nil, 0)
	require.NoError(t, err)
	for _, decl := range file.Decls {
		constants, ok := decl.(*ast.GenDecl)
		if !ok || constants.Tok != token.CONST {
			continue
		}
		for _, spec := range constants.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				if strings.HasPrefix(name.Name, "Reason") {
					names = append(names, name.Name)
				}
			}
		}
	}
	// The last one has a text, and the next value has none.
	require.NotEmpty(t, names)
	last := httpretry.Reason(len(names) - 1)
	assert.NotContains(t, last.String(), "Reason(", "not all constants are reasons")
	assert.Contains(t, (last + 1).String(), "Reason(", "reasons that are not in event.go")
	return names
}

// namesInTests returns the identifiers in each test of the repository.
func namesInTests(t *testing.T) map[string]map[string]bool {
	t.Helper()
	used := map[string]map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !testName.MatchString("`"+fn.Name.Name+"`") {
				continue
			}
			names := map[string]bool{}
			ast.Inspect(fn, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					names[id.Name] = true
				}
				return true
			})
			used[fn.Name.Name] = names
		}
		return nil
	})
	require.NoError(t, err)
	return used
}
