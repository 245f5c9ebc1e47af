//go:build ignore

// Api prints the exported API of the package in a folder as Go's own api/*.txt
// do: one line for each name, field and method, sorted, without comments.
//
//	go run .ci/api.go ./strategies
package main

import (
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"os"
	"slices"
	"strings"
)

// api has a line for each exported identifier of pkg.
type api struct {
	pkg   *types.Package
	lines []string
}

func (a *api) add(format string, args ...any) {
	a.lines = append(a.lines, "pkg "+a.pkg.Name()+", "+fmt.Sprintf(format, args...))
}

// text returns a type with the names of the packages that it is from, other
// than a.pkg.
func (a *api) text(t types.Type) string {
	return types.TypeString(t, func(p *types.Package) string {
		if p == a.pkg {
			return ""
		}
		return p.Name()
	})
}

func (a *api) signature(f *types.Func) string {
	return f.Name() + strings.TrimPrefix(a.text(f.Type()), "func")
}

func (a *api) object(o types.Object) {
	switch o := o.(type) {
	case *types.Const:
		a.add("const %s %s = %s", o.Name(), a.text(o.Type()), o.Val())
	case *types.Var:
		a.add("var %s %s", o.Name(), a.text(o.Type()))
	case *types.Func:
		a.add("func %s", a.signature(o))
	case *types.TypeName:
		a.typeName("type "+o.Name(), o.Type())
	}
}

func (a *api) typeName(prefix string, typ types.Type) {
	switch t := typ.Underlying().(type) {
	case *types.Struct:
		a.add("%s struct", prefix)
		for f := range t.Fields() {
			if f.Exported() {
				a.add("%s struct, %s %s", prefix, f.Name(), a.text(f.Type()))
			}
		}
	case *types.Interface:
		a.add("%s interface", prefix)
		for m := range t.Methods() {
			a.add("%s interface, %s", prefix, a.signature(m))
		}
	default:
		a.add("%s %s", prefix, a.text(t))
	}
	if named, ok := typ.(*types.Named); ok {
		for m := range named.Methods() {
			if m.Exported() {
				a.add("method (%s) %s", a.text(m.Signature().Recv().Type()), a.signature(m))
			}
		}
	}
}

func main() {
	source := importer.ForCompiler(token.NewFileSet(), "source", nil).(types.ImporterFrom)
	pkg, err := source.ImportFrom(strings.Join(os.Args[1:], " "), ".", 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
	a := api{pkg: pkg}
	for _, name := range pkg.Scope().Names() {
		if o := pkg.Scope().Lookup(name); o.Exported() {
			a.object(o)
		}
	}
	slices.Sort(a.lines)
	fmt.Println(strings.Join(a.lines, "\n"))
}
