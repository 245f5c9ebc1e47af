package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	wrapPackage = "github.com/seed421102f4/httpretry/integration/nethttp/wrap"
	modeEnv     = "NETHTTP_MODE"  // the mode of a test binary
	countEnv    = "NETHTTP_COUNT" // its file with one byte per request

	// hookFile is added to the copy's package net/http.
	hookFile = `package http

// RoundTripperHook is set by the tests. It is nil in the go command.
var RoundTripperHook func(RoundTripper) RoundTripper

// HookedRoundTripper returns what is to be called instead of rt.
func HookedRoundTripper(rt RoundTripper) RoundTripper {
	if rt == nil || RoundTripperHook == nil {
		return rt
	}
	return RoundTripperHook(rt)
}
`
	// setterPackage is added to the copy's standard library.
	setterPackage = `// Package httpretrysetter puts httpretry below all clients.
package httpretrysetter

import (
	"net/http"
	"os"

	%q
)

func init() {
	mode := os.Getenv(%q)
	if mode == "" {
		return // a process that a test started with an environment of its own
	}
	w, err := wrap.New(mode, os.Getenv(%q))
	if err != nil {
		panic(err)
	}
	http.RoundTripperHook = w.Transport
}
`
	// setterFile is added to each package's external tests. Those may import
	// packages that import the package under test, which net/http itself
	// cannot.
	setterFile = `package %s_test

import _ "httpretrysetter"
`
)

// copyGOROOT copies the files that are needed to build and run tests.
func copyGOROOT(from, to string) error {
	for _, name := range []string{"bin", "lib", "pkg", "src"} {
		if err := os.CopyFS(filepath.Join(to, name), os.DirFS(filepath.Join(from, name))); err != nil {
			return err
		}
	}
	for _, name := range []string{"VERSION", "go.env"} {
		if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// vendorLibrary copies package wrap and all that it imports to a folder where
// packages of the standard library may import it from.
func vendorLibrary(ctx context.Context, vendor string) error {
	list, err := output(ctx, "", "go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,Standard", wrapPackage)
	if err != nil {
		return err
	}
	for decoder := json.NewDecoder(strings.NewReader(list)); ; {
		var p struct {
			ImportPath, Dir string
			GoFiles         []string
			Standard        bool
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if p.Standard {
			continue
		}
		for _, file := range p.GoFiles {
			if err := copyFile(filepath.Join(p.Dir, file), filepath.Join(vendor, p.ImportPath, file)); err != nil {
				return err
			}
		}
	}
}

func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o666)
}

// rewrite changes the sources below src so that requests go through the hook,
// and returns in how many places.
func rewrite(src string) (int, error) {
	hook := filepath.Join(src, "net/http/httpretry_hook.go")
	if err := os.WriteFile(hook, []byte(hookFile), 0o666); err != nil {
		return 0, err
	}
	setter := filepath.Join(src, "httpretrysetter/setter.go")
	if err := os.Mkdir(filepath.Dir(setter), 0o777); err != nil {
		return 0, err
	}
	text := fmt.Sprintf(setterPackage, wrapPackage, modeEnv, countEnv)
	if err := os.WriteFile(setter, []byte(text), 0o666); err != nil {
		return 0, err
	}

	// Without these two no test would have httpretry below it.
	for name, find := range map[string]finder{
		"net/http/client.go":                clientTransport,
		"net/http/httputil/reverseproxy.go": roundTripCalls,
	} {
		n, err := rewriteFile(filepath.Join(src, name), find)
		if err != nil {
			return 0, err
		}
		if n == 0 {
			return 0, fmt.Errorf("%s: found nothing to rewrite: has this version of Go changed it?", name)
		}
	}
	return rewriteTests(src)
}

// addSetters adds a file to the tests of each package of a suite.
func addSetters(s *suite, goroot string) error {
	for _, p := range s.packages {
		file := filepath.Join(p.folder(goroot), "httpretry_setter_test.go")
		if err := os.WriteFile(file, fmt.Appendf(nil, setterFile, p.name), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// rewriteTests rewrites the RoundTrip calls of all tests.
func rewriteTests(src string) (int, error) {
	total := 0
	for _, p := range standardPackages {
		names, err := filepath.Glob(filepath.Join(src, p, "*_test.go"))
		if err != nil {
			return 0, err
		}
		for _, name := range names {
			n, err := rewriteFile(name, roundTripCalls)
			if err != nil {
				return 0, err
			}
			total += n
		}
	}
	if total == 0 {
		return 0, errors.New("the tests have no RoundTrip calls: has this version of Go changed them?")
	}
	return total, nil
}

// finder returns the expressions of a file that are to go through the hook.
type finder func(*ast.File) []ast.Expr

// rewriteFile puts a call of the hook around the expressions that find returns.
// It inserts text and keeps everything else, so that lines keep their numbers.
func rewriteFile(name string, find finder) (int, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
	if err != nil {
		return 0, err
	}
	found := find(file)
	// From the end of the file, so that the offsets before stay right.
	slices.SortFunc(found, func(a, b ast.Expr) int { return int(b.Pos() - a.Pos()) })
	call := qualified(file) + "HookedRoundTripper("
	for _, expr := range found {
		start, end := fset.Position(expr.Pos()).Offset, fset.Position(expr.End()).Offset
		text = slices.Insert(text, end, ')')
		text = slices.Insert(text, start, []byte(call)...)
	}
	return len(found), os.WriteFile(name, text, fs.FileMode(0o666))
}

// qualified returns the prefix of package net/http's names in file.
func qualified(file *ast.File) string {
	for _, spec := range file.Imports {
		if spec.Path.Value == `"net/http"` && (spec.Name == nil || spec.Name.Name != ".") {
			return "http."
		}
	}
	return "" // package http itself, or a dot import
}

// clientTransport finds the results of Client.transport.
func clientTransport(file *ast.File) []ast.Expr {
	var found []ast.Expr
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv == nil || f.Name.Name != "transport" {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if r, ok := n.(*ast.ReturnStmt); ok {
				found = append(found, r.Results...)
			}
			return true
		})
	}
	return found
}

// roundTripCalls finds the transports whose RoundTrip is called, but for calls
// by another RoundTrip method, since that belongs to a transport below
// httpretry.
func roundTripCalls(file *ast.File) []ast.Expr {
	var found []ast.Expr
	ast.Inspect(file, func(n ast.Node) bool {
		if f, ok := n.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == "RoundTrip" {
			return false
		}
		if call, ok := n.(*ast.CallExpr); ok {
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "RoundTrip" {
				found = append(found, f.X)
			}
		}
		return true
	})
	return found
}
