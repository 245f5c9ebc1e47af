package repository

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNamesOfCases checks that no test decides by the name of its case. A
// renamed case would silently test something else. A field of the table, a
// function or a constant decides instead. A variable is a name if the test
// passes it to Run and uses it in messages only. A method that also goes into a
// request is not a name.
func TestNamesOfCases(t *testing.T) {
	names := 0
	require.NoError(t, filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			u := uses{named: map[string]bool{}, compared: map[string]token.Pos{},
				other: map[string]bool{}}
			u.walk(decl)
			names += len(u.named)
			for name := range u.named {
				if at, ok := u.compared[name]; ok && !u.other[name] {
					assert.Fail(t, "a test decides by the name of its case",
						"%s: %s", fset.Position(at), name)
				}
			}
		}
		return nil
	}))
	assert.Greater(t, names, 100)
}

func TestUses(t *testing.T) {
	for body, decides := range map[string]bool{
		`t.Run(name, func(t *testing.T) { if name == "a" {} })`:                 true,
		`t.Run(tt.name, func(t *testing.T) { _ = "a" != tt.name })`:             true,
		`t.Run(x+"/"+name, func(t *testing.T) { switch name { case "a": } })`:   true,
		`t.Run(name, f); strings.HasPrefix(name, "a"); assert.True(t, x, name)`: true,
		`t.Run(name, f); for name := range x { _ = name == "a" }`:               true,
		`t.Run(name, f); if name == "a" {}; send(name)`:                         false,
		`t.Run(name, f); if name == other {}`:                                   false,
		`t.Run(name, f); if name == "" {}`:                                      false,
		`t.Run(tt.name, f); if name == "a" {}`:                                  false,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc f() {"+body+"}", 0)
		require.NoError(t, err)
		u := uses{
			named: map[string]bool{}, compared: map[string]token.Pos{}, other: map[string]bool{}}
		u.walk(file)
		got := false
		for name := range u.named {
			_, ok := u.compared[name]
			got = got || ok && !u.other[name]
		}
		assert.Equal(t, decides, got, body)
	}
}

// uses has the variables, and the fields of variables, that a declaration uses.
type uses struct {
	named    map[string]bool      // in the names that are passed to Run
	compared map[string]token.Pos // with a string literal
	other    map[string]bool      // for anything else but messages
}

func (u uses) walk(n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		if name, with, ok := comparison(n); ok {
			u.compared[types.ExprString(name)] = n.Pos()
			for _, child := range with {
				u.walk(child)
			}
			return false
		}
		switch n := n.(type) {
		case *ast.RangeStmt: // but for the variables that it declares
			u.walk(n.X)
			u.walk(n.Body)
			return false
		case *ast.CallExpr:
			return u.walkCall(n)
		case ast.Expr:
			if isVariable(n) {
				u.other[types.ExprString(n)] = true
				return false
			}
		}
		return true
	})
}

// walkCall reports whether the parts of the call are still to be walked.
func (u uses) walkCall(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return true
	}
	from, isCheck := types.ExprString(f.X), false
	switch {
	case f.Sel.Name == "Run" && len(call.Args) == 2:
		ast.Inspect(call.Args[0], func(n ast.Node) bool {
			e, ok := n.(ast.Expr)
			if ok = ok && isVariable(e); ok {
				u.named[types.ExprString(e)] = true
			}
			return !ok
		})
		u.walk(call.Args[1])
		return false
	case from == "assert" || from == "require" || from == "t":
		isCheck = true
	}
	for _, arg := range call.Args {
		if !isCheck || !isVariable(arg) {
			u.walk(arg)
		}
	}
	if !isVariable(f) {
		u.walk(f.X)
	}
	return false
}

// isVariable reports whether e is a variable or a field of one. It may also be
// a package or a function, which makes no difference here.
func isVariable(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return true
	case *ast.SelectorExpr:
		return isVariable(e.X)
	}
	return false
}

// comparison reports whether n compares a variable with a string literal. It
// returns the variable and the other parts of n.
func comparison(n ast.Node) (name ast.Expr, rest []ast.Node, ok bool) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		name, text := n.X, n.Y
		if isText(name) {
			name, text = text, name
		}
		return name, nil, (n.Op == token.EQL || n.Op == token.NEQ) &&
			isVariable(name) && isText(text)
	case *ast.SwitchStmt:
		for _, clause := range n.Body.List {
			list := clause.(*ast.CaseClause).List
			if n.Tag != nil && isVariable(n.Tag) && len(list) > 0 && isText(list[0]) {
				return n.Tag, []ast.Node{n.Body}, true
			}
		}
	case *ast.CallExpr:
		f, isSelector := n.Fun.(*ast.SelectorExpr)
		if isSelector && types.ExprString(f.X) == "strings" && len(n.Args) == 2 {
			compares := f.Sel.Name == "HasPrefix" || f.Sel.Name == "HasSuffix" ||
				f.Sel.Name == "Contains"
			return n.Args[0], nil, compares && isVariable(n.Args[0]) && isText(n.Args[1])
		}
	}
	return nil, nil, false
}

// isText reports whether e is a string literal that is not empty.
func isText(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Kind == token.STRING && len(lit.Value) > 2
}
