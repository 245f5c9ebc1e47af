//go:build ignore

// Shape measures the root package, so that no part of it grows into a house
// again: the methods of the largest type, the fields of the widest struct but
// Policy, the lines of the longest file, the line of RoundTrip in transport.go,
// and the references from a file to a higher one in the best order of files. It
// fails if one of them exceeds its limit.
//
//	go run .ci/shape.go
package main

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	fset := token.NewFileSet()
	files, err := parse(fset, ".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "shape:", err)
		os.Exit(2)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "source", nil)}
	pkg, err := config.Check("github.com/seed421102f4/httpretry", fset, files, info)
	if err != nil {
		fmt.Fprintln(os.Stderr, "shape:", err)
		os.Exit(2)
	}
	p := &shape{fset: fset, files: files, info: info, pkg: pkg}
	failed := false
	for _, m := range []measure{p.methods(), p.fields(), p.lines(), p.roundTrip(), p.upward()} {
		fmt.Printf("%s: %d of at most %d (%s)\n", m.name, m.value, m.limit, m.where)
		failed = failed || m.value > m.limit
	}
	if failed {
		fmt.Fprintln(os.Stderr, "shape: a limit is exceeded; give things that belong together a type or a file of their own")
		os.Exit(1)
	}
}

// measure is one number, its limit, and the place that it is of.
type measure struct {
	name         string
	value, limit int
	where        string
}

type shape struct {
	fset  *token.FileSet
	files []*ast.File
	info  *types.Info
	pkg   *types.Package
}

func parse(fset *token.FileSet, dir string) ([]*ast.File, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

func (p *shape) fileOf(pos token.Pos) string { return filepath.Base(p.fset.Position(pos).Filename) }

// named calls f for each type that the package declares.
func (p *shape) named(f func(*types.Named)) {
	for _, name := range p.pkg.Scope().Names() {
		if t, ok := p.pkg.Scope().Lookup(name).Type().(*types.Named); ok && t.Obj().Pkg() == p.pkg {
			f(t)
		}
	}
}

func (p *shape) methods() measure {
	m := measure{name: "methods of a type", limit: maxMethods}
	p.named(func(t *types.Named) {
		if n := t.NumMethods(); n > m.value {
			m.value, m.where = n, t.Obj().Name()
		}
	})
	return m
}

func (p *shape) fields() measure {
	m := measure{name: "fields of a struct", limit: maxFields}
	p.named(func(t *types.Named) {
		s, ok := t.Underlying().(*types.Struct)
		// Each field of Policy is a setting, which users look for there.
		if ok && t.Obj().Name() != "Policy" && s.NumFields() > m.value {
			m.value, m.where = s.NumFields(), t.Obj().Name()
		}
	})
	return m
}

func (p *shape) lines() measure {
	m := measure{name: "lines of a file", limit: maxLines}
	for _, file := range p.files {
		if n := p.fset.File(file.FileStart).LineCount(); n > m.value {
			m.value, m.where = n, p.fileOf(file.Pos())
		}
	}
	return m
}

func (p *shape) roundTrip() measure {
	m := measure{name: "line of RoundTrip", limit: maxRoundTrip}
	for _, file := range p.files {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "RoundTrip" {
				m.value, m.where = p.fset.Position(f.Pos()).Line, p.fileOf(f.Pos())
			}
		}
	}
	return m
}

// upward counts the names that a file uses of a higher one, in the order of
// files that makes them fewest.
func (p *shape) upward() measure {
	refs := p.references()
	names := slices.Sorted(maps.Keys(refs))
	index := map[string]int{}
	for i, name := range names {
		index[name] = i
	}
	cost := make([][]int, len(names)) // names that the first file uses of the second
	total := 0
	for i, name := range names {
		cost[i] = make([]int, len(names))
		for other, used := range refs[name] {
			cost[i][index[other]] = len(used)
			total += len(used)
		}
	}
	// best[s] is the least cost of an order that begins, at the top, with the
	// files of the set s. The cost is the number of their names that each file
	// below uses.
	low, high := halves(cost)
	half := len(names) / 2
	best, last := make([]int32, 1<<len(names)), make([]int8, 1<<len(names))
	for s := 1; s < len(best); s++ {
		best[s] = math.MaxInt32
		for rest := s; rest != 0; rest &= rest - 1 {
			i := bits.TrailingZeros(uint(rest))
			above := s &^ (1 << i)
			c := best[above] + low[i][above&(1<<half-1)] + high[i][above>>half]
			if c < best[s] {
				best[s], last[s] = c, int8(i)
			}
		}
	}
	var order []string
	for s := len(best) - 1; s != 0; s &^= 1 << last[s] {
		order = append(order, names[last[s]])
	}
	slices.Reverse(order)
	if len(os.Args) > 1 && os.Args[1] == "-v" {
		for i, low := range order {
			for _, high := range order[:i] {
				for _, name := range slices.Sorted(maps.Keys(refs[low][high])) {
					fmt.Printf("  %s uses %s of %s\n", low, name, high)
				}
			}
		}
	}
	return measure{"references to a higher file", int(best[len(best)-1]), maxUpward,
		fmt.Sprintf("of %d, from top to bottom: %s", total, strings.Join(order, " "))}
}

// halves returns the sums of the names that each file uses of a set of the
// first half of the files, and of a set of the others.
func halves(cost [][]int) (low, high [][]int32) {
	sums := func(row []int) []int32 {
		all := make([]int32, 1<<len(row))
		for s := 1; s < len(all); s++ {
			i := bits.TrailingZeros(uint(s))
			all[s] = all[s&(s-1)] + int32(row[i])
		}
		return all
	}
	half := len(cost) / 2
	for _, row := range cost {
		low, high = append(low, sums(row[:half])), append(high, sums(row[half:]))
	}
	return low, high
}

// references returns, for each file, the other files that it uses names of,
// and these names.
func (p *shape) references() map[string]map[string]map[string]bool {
	refs := map[string]map[string]map[string]bool{}
	for _, file := range p.files {
		refs[p.fileOf(file.Pos())] = map[string]map[string]bool{}
	}
	for id, obj := range p.info.Uses {
		if obj.Pkg() != p.pkg || !isShared(obj, p.pkg) {
			continue
		}
		from, to := p.fileOf(id.Pos()), p.fileOf(obj.Pos())
		if from == to {
			continue
		}
		if refs[from][to] == nil {
			refs[from][to] = map[string]bool{}
		}
		refs[from][to][qualified(obj)] = true
	}
	return refs
}

// isShared reports whether obj is declared by the package itself or is a
// method of one of its types.
func isShared(obj types.Object, pkg *types.Package) bool {
	if f, ok := obj.(*types.Func); ok && f.Signature().Recv() != nil {
		return true
	}
	return obj.Parent() == pkg.Scope()
}

func qualified(obj types.Object) string {
	if f, ok := obj.(*types.Func); ok && f.Signature().Recv() != nil {
		return types.TypeString(f.Signature().Recv().Type(), func(*types.Package) string { return "" }) + "." + f.Name()
	}
	return obj.Name()
}

const (
	maxMethods   = 40
	maxFields    = 16
	maxLines     = 450
	maxRoundTrip = 120
	maxUpward    = 12
)
