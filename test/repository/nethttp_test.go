package repository

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
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

// TestNetHTTP checks docs/internals/nethttp.md. The tests that it names exist, its names
// are those that comments of the library cite, its texts are those in the code,
// and the rows of TestFaults that it names exist. If the source of net/http is
// there, each name is declared in it.
func TestNetHTTP(t *testing.T) {
	doc, err := os.ReadFile("../../docs/internals/nethttp.md")
	require.NoError(t, err)
	names, texts, others := rowsOf(t, string(doc), "Names"), rowsOf(t, string(doc),
		"Texts that determine an Outcome"), rowsOf(t, string(doc), "Other texts")
	tests := map[string][]string{}
	sources := map[string]*source{}
	require.NoError(t,
		filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && path != "../.." && isModule(path):
				return fs.SkipDir
			case strings.HasSuffix(path, "_test.go"):
				return readTests(path, map[string]string{}, tests)
			case strings.HasSuffix(path, ".go"):
				return readSource(path, sources)
			}
			return nil
		}))
	for _, name := range testName.FindAllStringSubmatch(string(doc), -1) {
		assert.Contains(t, tests, name[1], "nethttp.md names %s, which does not exist",
			name[1])
	}
	t.Run("names", func(t *testing.T) { checkNames(t, names, sources) })
	t.Run("error texts", func(t *testing.T) { checkErrorTexts(t, texts, sources["classify.go"]) })
	t.Run("other texts", func(t *testing.T) {
		for _, row := range others {
			for file := range strings.SplitSeq(row[2], ", ") {
				require.Contains(t, sources, file)
				assert.Contains(t, sources[file].literals, spans(row[0])[0],
					"%s has no such text", file)
			}
		}
	})
}

// rowsOf returns the cells of each row of the table below a heading.
func rowsOf(t *testing.T, doc, heading string) (rows [][]string) {
	_, section, ok := strings.Cut(doc, "\n## "+heading+"\n")
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

var codeSpan = regexp.MustCompile("`([^`]+)`")

// spans returns the texts between backticks.
func spans(cell string) (texts []string) {
	for _, span := range codeSpan.FindAllStringSubmatch(cell, -1) {
		texts = append(texts, span[1])
	}
	return texts
}

func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// source is the part of a file of the library that is checked.
type source struct {
	file     *ast.File
	literals []string
}

func readSource(path string, sources map[string]*source) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	s := &source{file: file}
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			text, _ := strconv.Unquote(literal.Value)
			s.literals = append(s.literals, text)
		}
		return true
	})
	sources[strings.TrimPrefix(filepath.ToSlash(path), "../../")] = s
	return nil
}

// checkErrorTexts compares rows with the function errorTexts in classify.go, in
// both directions and in the same order.
func checkErrorTexts(t *testing.T, rows [][]string, classify *source) {
	var documented, inCode [][]string
	faults := map[string]*source{}
	require.NoError(t, readSource("../../test/neterrors_test.go", faults))
	for _, row := range rows {
		texts := spans(row[0])
		documented = append(documented, append(texts, make([]string, 2-len(texts))...))
		documented[len(documented)-1] = append(documented[len(documented)-1], row[1])
		assert.Contains(t, faults["test/neterrors_test.go"].literals, row[3],
			"TestFaults has no such row")
	}
	constants := map[string]string{}
	ast.Inspect(classify.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if len(n.Values) == 1 {
				constants[n.Names[0].Name] = literalIn(n.Values[0], nil)
			}
		case *ast.FuncDecl:
			if n.Name.Name != "errorTexts" {
				return n.Name.Name == "" // no other function has entries
			}
		case *ast.CompositeLit:
			if len(n.Elts) == 3 {
				inCode = append(
					inCode,
					[]string{literalIn(n.Elts[0], constants), literalIn(n.Elts[1], constants),
						n.Elts[2].(*ast.Ident).Name})
			}
		}
		return true
	})
	require.NotEmpty(t, inCode)
	assert.Equal(t, inCode, documented)
}

// literalIn returns the value of a literal, or of a name among constants.
func literalIn(expr ast.Expr, constants map[string]string) string {
	switch expr := expr.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(expr.Value)
		return text
	case *ast.Ident:
		return constants[expr.Name]
	}
	return ""
}

// checkNames compares rows with the comments of the library, and with the
// source of net/http.
func checkNames(t *testing.T, rows [][]string, sources map[string]*source) {
	declared := newDeclarations(t)
	documented := map[string][]string{}
	for _, row := range rows {
		name := spans(row[0])[0]
		assert.True(t, declared.has(name), "%s: net/http has no %s", runtime.Version(), name)
		documented[name] = slices.Sorted(strings.SplitSeq(row[2], ", "))
	}
	cited := map[string][]string{}
	for _, path := range slices.Sorted(maps.Keys(sources)) {
		own := identifiersIn(filepath.Dir(path), sources)
		for _, name := range declared.citedIn(sources[path].file, own) {
			cited[name] = append(cited[name], path)
		}
	}
	assert.Equal(t, cited, documented, "names in comments, and the files that have them")
}

// identifiersIn returns all identifiers of the files in a folder.
func identifiersIn(dir string, sources map[string]*source) map[string]bool {
	all := map[string]bool{}
	for path, s := range sources {
		if filepath.Dir(path) == dir {
			ast.Inspect(s.file, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					all[id.Name] = true
				}
				return true
			})
		}
	}
	return all
}

// declarations are the names that net/http declares, those of HTTP/2 with the
// prefix that they have up to Go 1.26. Methods follow their type and a dot.
type declarations map[string]ast.Expr // the value of a variable, or nil

// newDeclarations reads the source of the Go that runs the test. It skips the
// test if there is none.
func newDeclarations(t *testing.T) declarations {
	dir := filepath.Join(build.Default.GOROOT, "src", "net", "http")
	if _, err := os.Stat(dir); err != nil {
		t.Skip("there is no source of net/http: ", err)
	}
	d := declarations{}
	for folder, prefix := range map[string]string{
		dir: "", filepath.Join(dir, "internal", "http2"): "http2"} {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		require.NoError(t, err)
		for _, path := range files {
			if !strings.HasSuffix(path, "_test.go") {
				file, err := parser.ParseFile(
					token.NewFileSet(), path, nil, parser.SkipObjectResolution)
				require.NoError(t, err)
				d.add(file, prefix)
			}
		}
	}
	return d
}

func (d declarations) add(file *ast.File, prefix string) {
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			name := decl.Name.Name
			if decl.Recv != nil {
				name = strings.TrimPrefix(types.ExprString(decl.Recv.List[0].Type), "*") + "." +
					name
			}
			d[prefix+name] = nil
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					d[prefix+spec.Name.Name] = nil
				case *ast.ValueSpec:
					for i, name := range spec.Names {
						d[prefix+name.Name] = nil
						if i < len(spec.Values) {
							d[prefix+name.Name] = spec.Values[i]
						}
					}
				}
			}
		}
	}
}

func (d declarations) has(name string) bool {
	_, plain := d[name]
	_, http2 := d["http2"+name]
	return plain || http2
}

var identifier = regexp.MustCompile(`\b[A-Za-z]\w*(?:\.[A-Za-z]\w*)?`)

// citedIn returns the names of net/http in the comments of a file that are not
// exported, once each. A single word may be an English one, so it counts only
// if it has a capital letter, and if the package of the file does not use it.
func (d declarations) citedIn(file *ast.File, own map[string]bool) (names []string) {
	for _, comment := range file.Comments {
		for _, name := range identifier.FindAllString(comment.Text(), -1) {
			first, second, isMethod := strings.Cut(name, ".")
			hidden := !ast.IsExported(first) && strings.ToLower(name) != name &&
				(isMethod || !own[name]) ||
				isMethod && !ast.IsExported(second)
			if hidden && d.has(name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// maxLinger in attempt.go is longer than the time for which net/http waits for
// the end of a request before it uses a connection again.
func TestLinger(t *testing.T) {
	value := newDeclarations(t)["maxWriteWaitBeforeConnReuse"]
	require.NotNil(t, value)
	assert.Equal(t, "50 * time.Millisecond", types.ExprString(value))
	sources := map[string]*source{}
	require.NoError(t, readSource("../../attempt.go", sources))
	own := declarations{}
	own.add(sources["attempt.go"].file, "")
	assert.Equal(t, "100 * time.Millisecond", types.ExprString(own["maxLinger"]))
}
