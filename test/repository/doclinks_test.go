package repository

import (
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDocLinks checks that the links in the comments of all packages resolve,
// those to other packages included. A link that go/doc does not resolve is
// shown as text in brackets.
func TestDocLinks(t *testing.T) {
	packages := ownPackages(t)
	require.Contains(t, packages, module)
	known, links := maps.Clone(packages), 0
	for path, p := range packages {
		for _, text := range p.comments {
			found, problems := checkLinks(t, p.Parser().Parse(text).Content, known)
			links += found
			assert.Empty(t, problems, "%s: these links do not resolve", path)
		}
	}
	assert.Greater(t, links, 100)
}

// TestDocLinkProblems checks that TestDocLinks finds each kind of problem.
func TestDocLinkProblems(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.go")
	require.NoError(t, os.WriteFile(file, []byte("package p\n\nimport \"net/http\"\n\n"+
		"type A struct{ B http.Client }\n\nfunc (A) C() {}\n"), 0o600))
	packages := map[string]documented{module: parsePackage(t, module, []string{file}, 0)}
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
		links, problems := checkLinks(t, packages[module].Parser().Parse(text).Content, packages)
		assert.Equal(t, want.links, links, text)
		assert.Len(t, problems, want.problems, text)
	}
}

// A documented package has all its comments, also those that are not shown.
type documented struct {
	*doc.Package
	comments []string
}

// ownPackages returns the packages of all modules by their import paths.
func ownPackages(t *testing.T) map[string]documented {
	t.Helper()
	files := map[string][]string{}
	for _, file := range filesBelow(t, "../..", ".go") {
		dir := filepath.ToSlash(filepath.Dir(file)[len("../.."):])
		importPath := path.Join(module, dir)
		files[importPath] = append(files[importPath], file)
	}
	packages := map[string]documented{}
	for importPath, paths := range files {
		if p := parsePackage(t, importPath, paths, 0); p.Package != nil {
			packages[importPath] = p
		}
	}
	return packages
}

// parsePackage returns the package in these files. Of test files, it has only
// the Examples.
func parsePackage(
	t *testing.T, importPath string, paths []string, mode doc.Mode) (p documented) {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	for _, path := range paths {
		file, err := parser.ParseFile(
			fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file)
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, group := range file.Comments {
			p.comments = append(p.comments, group.Text())
		}
	}
	parsed, err := doc.NewFromFiles(fset, files, importPath, mode)
	require.NoError(t, err)
	if parsed.Name != "" { // there are files besides tests
		p.Package = parsed
	}
	return p
}

// likeLink matches text that looks like a link.
var likeLink = regexp.MustCompile(`\[\*?(?:[a-z][\w/]*\.)?[A-Z]\w*(?:\.[A-Z]\w*)?\]`)

// checkLinks returns the number of links in a comment, and those that do not
// resolve. It adds packages of Go to known.
func checkLinks(t *testing.T, blocks []comment.Block, known map[string]documented) (
	links int, problems []string) {
	for _, block := range blocks {
		var texts []comment.Text
		switch block := block.(type) {
		case *comment.Heading:
			texts = block.Text
		case *comment.Paragraph:
			texts = block.Text
		case *comment.List:
			for _, item := range block.Items {
				n, more := checkLinks(t, item.Content, known)
				links, problems = links+n, append(problems, more...)
			}
		}
		for _, text := range texts {
			switch text := text.(type) {
			case comment.Plain:
				problems = append(problems, likeLink.FindAllString(string(text), -1)...)
			case *comment.DocLink:
				links++
				if !resolves(t, text, known) {
					problems = append(problems, text.DefaultURL(""))
				}
			}
		}
	}
	return links, problems
}

// resolves reports whether the target of a link exists. It assumes that the
// packages of others do. go/doc has looked for names in the same package.
func resolves(t *testing.T, link *comment.DocLink, known map[string]documented) bool {
	path := link.ImportPath
	host, _, _ := strings.Cut(path, "/")
	p, ok := known[path]
	switch {
	case path == "" || strings.Contains(host, ".") && !strings.HasPrefix(path+"/", module+"/"):
		return true
	case !ok && !strings.Contains(host, "."):
		p = parsePackage(t, path, goFiles(t, path), 0)
		known[path] = p
	}
	return p.Package != nil && (link.Name == "" || p.Parser().LookupSym(link.Recv, link.Name))
}
