package repository

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/seed421102f4/httpretry"

// versioned are the modules that have versions of their own. An internal
// package of the core may change with each version of the core. If such a
// module used one, it and its tests could fail to compile after an upgrade of
// the core only.
var versioned = []string{"otelretry", "redisbudget", "retrylab"}

// TestImports checks the picture of the folders in CONTRIBUTING.md: the imports
// of the packages in each folder, and that the folder exists. Test files may
// import more.
func TestImports(t *testing.T) {
	picture := readPicture(t)
	require.NotEmpty(t, picture)
	for folder := range picture {
		assert.DirExists(t, filepath.Join("..", "..", folder),
			"CONTRIBUTING.md shows a folder that does not exist")
	}
	require.NoError(t, filepath.WalkDir("../..", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".go") || strings.Contains(file, "testdata") ||
			strings.HasPrefix(file, filepath.Join("..", "..", ".ci")) {
			return err
		}
		name := filepath.ToSlash(file[len("../../"):])
		assert.NotEqual(t, "internal", picture.folderOf(path.Dir(name)),
			"CONTRIBUTING.md does not show %s", name)
		for _, imported := range importsOf(t, file) {
			assert.NotEqual(t, module+"/test", imported, "%s: nothing may import the tests", name)
			if top, _, _ := strings.Cut(name, "/"); slices.Contains(versioned, top) {
				assert.False(t, strings.HasPrefix(imported, module+"/internal/"),
					"%s imports %s: want no internal package of the core", name, imported)
			}
			if !strings.HasSuffix(name, "_test.go") {
				picture.check(t, name, imported)
			}
		}
		return nil
	}))
}

// A picture has, for each folder, the packages that it may import besides the
// standard library.
type picture map[string][]string

// readPicture reads the picture in CONTRIBUTING.md. The root is the folder ".".
func readPicture(t *testing.T) picture {
	t.Helper()
	text, err := os.ReadFile("../../CONTRIBUTING.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```text\n(.*?)\n```").FindStringSubmatch(string(text))
	require.NotNil(t, block, "CONTRIBUTING.md has no picture of the folders")
	p := picture{}
	for _, row := range regexp.MustCompile(`(?m)^ *(\S+)/ +[^→\n]*(?:→ (.*))?$`).
		FindAllStringSubmatch(block[1], -1) {
		folder, imports := row[1], strings.Split(row[2], ", ")
		if folder == "httpretry" {
			folder = "."
		}
		p[folder] = imports
	}
	return p
}

// check checks one import of a file.
func (p picture) check(t *testing.T, file, imported string) {
	t.Helper()
	host, _, _ := strings.Cut(imported, "/")
	own := imported == module || strings.HasPrefix(imported, module+"/")
	if !strings.Contains(host, ".") || !own && isNested(path.Dir(file)) {
		return // the standard library, or a requirement of a nested module
	}
	folder := p.folderOf(path.Dir(file))
	if folder != "." && strings.HasPrefix(imported, module+"/"+folder+"/") {
		return // a package of the same folder
	}
	for _, name := range p[folder] {
		if matchesImport(name, imported) {
			return
		}
	}
	assert.Fail(t, "an import that the picture in CONTRIBUTING.md does not allow",
		"%s imports %s. Packages in %s may import: %s.", file, imported, folder,
		strings.Join(p[folder], ", "))
}

// folderOf returns the folder of the picture that contains dir.
func (p picture) folderOf(dir string) string {
	for folder := dir; ; folder = path.Dir(folder) {
		if _, ok := p[folder]; ok {
			return folder
		}
	}
}

// matchesImport reports whether name in the picture stands for an import path.
func matchesImport(name, imported string) bool {
	internal, isInternal := strings.CutPrefix(imported, module+"/internal/")
	switch {
	case imported == module:
		return name == "httpretry"
	case isInternal && internal != "faults" && internal != "contract" && name == "leaves":
		return true
	case isInternal:
		return name == internal
	case strings.HasPrefix(imported, module+"/"):
		return imported == module+"/"+name
	}
	return strings.Contains(imported+"/", "/"+name+"/") ||
		strings.HasPrefix(imported, "golang.org/"+name+"/")
}

// isNested reports whether dir belongs to a module inside this one.
func isNested(dir string) bool {
	for ; dir != "."; dir = path.Dir(dir) {
		if _, err := os.Stat(filepath.Join("..", "..", dir, "go.mod")); err == nil {
			return true
		}
	}
	return false
}

func importsOf(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	require.NoError(t, err)
	var paths []string
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		require.NoError(t, err)
		paths = append(paths, imported)
	}
	return paths
}
