package repository

import (
	"go/ast"
	"go/build"
	"go/doc"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDocLinks checks that the links in the documentation of all packages
// resolve, those to other packages included. A link that go/doc does not
// resolve is shown as text in brackets.
func TestDocLinks(t *testing.T) {
	own := ownPackages(t)
	require.Contains(t, own, module)
	packages := &linked{known: own, std: map[string]map[string]bool{}}
	links := 0
	for path, p := range own {
		for _, text := range docsOf(p.doc) {
			found, problems := packages.check(p.doc.Parser().Parse(text))
			links += found
			for _, problem := range problems {
				assert.Fail(t, "a link does not resolve", "%s: %s", path, problem)
			}
		}
	}
	assert.Greater(t, links, 100)
}

// TestDocLinkProblems checks that TestDocLinks finds each kind of problem.
func TestDocLinkProblems(t *testing.T) {
	const source = "package p\n\nimport \"net/http\"\n\n" +
		"type A struct{ B http.Client }\n\nfunc (A) C() {}\n"
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "p.go", source, parser.ParseComments)
	require.NoError(t, err)
	p, err := doc.NewFromFiles(fset, []*ast.File{file}, "example.com/p")
	require.NoError(t, err)
	packages := &linked{known: map[string]documented{
		module: {names: map[string]bool{"A": true, "A.B": true}},
	}, std: map[string]map[string]bool{}}
	for text, want := range map[string]struct{ links, problems int }{
		"[A], [A.B], [*A], [A.C] and [net/http]":            {5, 0},
		"[http.Client.Do], [http.Client.Timeout]":           {2, 0},
		"[D], [A.D], [B]":                                   {0, 3},
		"[http.Klient], [*http.Client.Does]":                {2, 2},
		"[" + module + ".A], [" + module + ".A.B]":          {2, 0},
		"[" + module + ".D], [" + module + "/q.A]":          {2, 2},
		"[jsonx.Encoder]":                                   {0, 1},
		"[::1], [80], [a], [example.com/q.A]\n\n\t[D] code": {1, 0},
	} {
		links, problems := packages.check(p.Parser().Parse(text))
		assert.Equal(t, want.links, links, text)
		assert.Len(t, problems, want.problems, text)
	}
}

// A documented package has the names that links can have.
type documented struct {
	doc   *doc.Package
	names map[string]bool // "A", "A.B"
}

// ownPackages returns the packages of all modules by their import paths.
func ownPackages(t *testing.T) map[string]documented {
	t.Helper()
	packages := map[string]documented{}
	require.NoError(t, filepath.WalkDir("../..", func(dir string, d fs.DirEntry, err error) error {
		name := filepath.Base(dir)
		switch {
		case err != nil || !d.IsDir():
			return err
		case name != ".." && strings.HasPrefix(name, ".") || name == "testdata":
			return filepath.SkipDir
		}
		importPath := path.Join(module, filepath.ToSlash(dir[len("../.."):]))
		fset := token.NewFileSet()
		if files := parseFolder(t, fset, dir); len(files) > 0 {
			// Before doc.NewFromFiles, which removes names from the files.
			names := namesOf(files)
			p, err := doc.NewFromFiles(fset, files, importPath)
			require.NoError(t, err)
			packages[importPath] = documented{p, names}
		}
		return nil
	}))
	return packages
}

// parseFolder returns the files of the package in a folder, without tests.
func parseFolder(t *testing.T, fset *token.FileSet, dir string) (files []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		require.NoError(t, err)
		files = append(files, file)
	}
	return files
}

// namesOf returns the exported names of a package, and those of their fields
// and methods.
func namesOf(files []*ast.File) map[string]bool {
	names := map[string]bool{}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				name := n.Name.Name
				if n.Recv != nil {
					name = receiver(n.Recv.List[0].Type) + "." + name
				}
				names[name] = true
				return false
			case *ast.ValueSpec:
				for _, id := range n.Names {
					names[id.Name] = true
				}
			case *ast.TypeSpec:
				names[n.Name.Name] = true
				for _, id := range members(n.Type) {
					names[n.Name.Name+"."+id.Name] = true
				}
			}
			return true
		})
	}
	return names
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// members returns the names of the fields of a struct, or of the methods of an
// interface.
func members(e ast.Expr) (names []*ast.Ident) {
	var fields *ast.FieldList
	switch e := e.(type) {
	case *ast.StructType:
		fields = e.Fields
	case *ast.InterfaceType:
		fields = e.Methods
	default:
		return nil
	}
	for _, field := range fields.List {
		names = append(names, field.Names...)
	}
	return names
}

// docsOf returns the comments that the documentation of a package shows.
func docsOf(p *doc.Package) []string {
	docs := []string{p.Doc}
	addDecl := func(decl *ast.GenDecl) {
		ast.Inspect(decl, func(n ast.Node) bool { // comments of fields and constants
			switch n := n.(type) {
			case *ast.Field:
				docs = append(docs, n.Doc.Text(), n.Comment.Text())
			case *ast.ValueSpec:
				docs = append(docs, n.Doc.Text(), n.Comment.Text())
			}
			return true
		})
	}
	addValues := func(values []*doc.Value) {
		for _, v := range values {
			docs = append(docs, v.Doc)
			addDecl(v.Decl)
		}
	}
	addFuncs := func(funcs []*doc.Func) {
		for _, f := range funcs {
			docs = append(docs, f.Doc)
		}
	}
	addValues(p.Consts)
	addValues(p.Vars)
	addFuncs(p.Funcs)
	for _, typ := range p.Types {
		docs = append(docs, typ.Doc)
		addDecl(typ.Decl)
		addValues(typ.Consts)
		addValues(typ.Vars)
		addFuncs(typ.Funcs)
		addFuncs(typ.Methods)
	}
	return docs
}

// linked has the packages that links can be to.
type linked struct {
	known map[string]documented
	std   map[string]map[string]bool // the names in packages of Go
}

// unresolved matches text that looks like a link.
var unresolved = regexp.MustCompile(`\[\*?(?:[a-z][\w/]*\.)?[A-Z]\w*(?:\.[A-Z]\w*)?\]`)

// check returns the number of links in a comment, and those that do not
// resolve.
func (l *linked) check(text *comment.Doc) (links int, problems []string) {
	for _, block := range text.Content {
		switch block := block.(type) {
		case *comment.Heading:
			l.checkText(block.Text, &links, &problems)
		case *comment.Paragraph:
			l.checkText(block.Text, &links, &problems)
		case *comment.List:
			for _, item := range block.Items {
				n, more := l.check(&comment.Doc{Content: item.Content})
				links, problems = links+n, append(problems, more...)
			}
		}
	}
	return links, problems
}

func (l *linked) checkText(text []comment.Text, links *int, problems *[]string) {
	for _, part := range text {
		switch part := part.(type) {
		case comment.Plain:
			*problems = append(*problems, unresolved.FindAllString(string(part), -1)...)
		case *comment.DocLink:
			*links++
			if name := strings.TrimPrefix(part.Recv+"."+part.Name, "."); name != "" &&
				part.ImportPath != "" && !l.has(part.ImportPath, name) {
				*problems = append(*problems, part.ImportPath+"."+name)
			}
		}
	}
}

// has reports whether a package has a name. It assumes that the packages of
// others do.
func (l *linked) has(importPath, name string) bool {
	if importPath == module || strings.HasPrefix(importPath, module+"/") {
		return l.known[importPath].names[name]
	}
	if first, _, _ := strings.Cut(importPath, "/"); strings.Contains(first, ".") {
		return true
	}
	if l.std[importPath] == nil {
		l.std[importPath] = stdNames(importPath)
	}
	return l.std[importPath][name]
}

// stdNames returns the names in a package of Go, and none if it does not exist.
func stdNames(importPath string) map[string]bool {
	p, err := build.Import(importPath, "", 0)
	if err != nil {
		return map[string]bool{}
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil,
			parser.SkipObjectResolution)
		if err == nil {
			files = append(files, file)
		}
	}
	return namesOf(files)
}
