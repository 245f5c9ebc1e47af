package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A place is a part of a source file and the text that replaces it.
type place struct {
	File  string // relative to the root of the module
	Dir   string // the package's folder, relative too
	Func  string // "(*T).Method", "Name", or "" outside functions
	Line  int
	Kind  string
	start int // offsets of the replaced text
	end   int
	text  string
	src   string // of the whole file

	// A test reaches the place if it covers the block of one of these.
	at       position
	function position // where the function begins
	clause   position // the end of a clause whose body begins after at
	anywhere bool     // outside functions, which any test of the file may reach
}

type position struct{ line, column int }

func (p position) before(q position) bool {
	return p.line < q.line || p.line == q.line && p.column < q.column
}

// id names a place of one tree.
func (p *place) id() string {
	return fmt.Sprintf("%s:%d-%d:%s", p.File, p.start, p.end, p.Kind)
}

// mutated returns the file with the change. Its lines have the same numbers.
func (p *place) mutated(extra string) string {
	return p.src[:p.start] + extra + p.text + p.src[p.end:]
}

// diff returns the lines that the change removes and adds, without their
// indentation.
func (p *place) diff() (removed, added []string) {
	from := strings.LastIndexByte(p.src[:p.start], '\n') + 1
	to := len(p.src)
	if n := strings.IndexByte(p.src[p.end:], '\n'); n >= 0 {
		to = p.end + n
	}
	was := strings.Split(p.src[from:to], "\n")
	is := strings.Split(p.src[from:p.start]+p.text+p.src[p.end:to], "\n")
	for i := range was {
		if was[i] != is[i] {
			removed = append(removed, strings.TrimSpace(was[i]))
			if line := strings.TrimSpace(is[i]); line != "" {
				added = append(added, line)
			}
		}
	}
	return removed, added
}

func (p *place) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d: %s: %s\n", p.File, p.Line, p.Func, p.Kind)
	removed, added := p.diff()
	for _, line := range removed {
		fmt.Fprintf(&b, "\t- %s\n", line)
	}
	for _, line := range added {
		fmt.Fprintf(&b, "\t+ %s\n", line)
	}
	return b.String()
}

// finder collects the places of one file.
type finder struct {
	fset   *token.FileSet
	file   string
	src    string
	stack  []ast.Node
	places []*place
}

// findPlaces returns the places of a file in order.
func findPlaces(root, file string) ([]*place, error) {
	src, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return nil, err
	}
	f := &finder{fset: token.NewFileSet(), file: file, src: string(src)}
	parsed, err := parser.ParseFile(f.fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if n == nil {
			f.stack = f.stack[:len(f.stack)-1]
			return true
		}
		f.stack = append(f.stack, n)
		f.visit(n)
		return true
	})
	slices.SortStableFunc(f.places, func(a, b *place) int { return a.start - b.start })
	seen := map[string]bool{} // a condition that is one comparison is negated once
	f.places = slices.DeleteFunc(f.places, func(p *place) bool {
		key := fmt.Sprint(p.start, p.end, p.text)
		again := seen[key]
		seen[key] = true
		return again
	})
	return f.places, nil
}

func (f *finder) visit(n ast.Node) {
	switch n := n.(type) {
	case *ast.IfStmt:
		f.negate(n.Cond)
	case *ast.ForStmt:
		f.negate(n.Cond)
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			f.replace(n, n.Pos(), n.X.Pos(), "negation removed", "")
		}
	case *ast.ExprStmt:
		if _, call := n.X.(*ast.CallExpr); call {
			f.remove(n, "call removed")
		}
	case *ast.DeferStmt:
		f.remove(n, "defer removed")
	case *ast.GoStmt:
		f.remove(n, "go removed")
	case *ast.IncDecStmt:
		other := map[token.Token]string{token.INC: "--", token.DEC: "++"}[n.Tok]
		f.replace(n, n.TokPos, n.TokPos+2, n.Tok.String()+" to "+other, other)
		f.remove(n, "assignment removed")
	case *ast.AssignStmt:
		if other, ok := swapped[n.Tok]; ok {
			f.replace(n, n.TokPos, n.TokPos+2, n.Tok.String()+" to "+other[0], other[0])
		}
		if n.Tok != token.DEFINE && !isUse(n) {
			f.remove(n, "assignment removed")
		}
	case *ast.CaseClause:
		f.caseClause(n)
	case *ast.CommClause:
		f.removeClause(n, n.Colon)
	case *ast.ReturnStmt:
		for _, result := range n.Results {
			f.flip(result)
		}
	}
}

// swapped has the operators that replace an operator. An equality and a
// comparison are negated, and the bound of a comparison is moved into it or out
// of it.
var swapped = map[token.Token][]string{
	token.LSS: {"<=", ">="}, token.LEQ: {"<", ">"}, token.GTR: {">=", "<="}, token.GEQ: {">", "<"},
	token.EQL: {"!="}, token.NEQ: {"=="},
	token.LAND: {"||"}, token.LOR: {"&&"},
	token.ADD: {"-"}, token.SUB: {"+"}, token.ADD_ASSIGN: {"-="}, token.SUB_ASSIGN: {"+="},
}

func (f *finder) binary(n *ast.BinaryExpr) {
	for _, other := range swapped[n.Op] {
		op := f.offset(n.OpPos)
		start, end := f.offset(n.Pos()), f.offset(n.End())
		text := f.src[start:op] + other + f.src[op+len(n.Op.String()):end]
		_, nested := f.stack[len(f.stack)-2].(*ast.BinaryExpr)
		if nested && (n.Op == token.LAND || n.Op == token.LOR) {
			text = "(" + text + ")" // the other operator binds differently
		}
		f.replace(n, n.Pos(), n.End(), n.Op.String()+" to "+other, text)
	}
}

// negate negates a condition that is neither a comparison nor a negation, for
// which visit has places of their own.
func (f *finder) negate(cond ast.Expr) {
	switch c := cond.(type) {
	case nil:
		return
	case *ast.UnaryExpr:
		if c.Op == token.NOT {
			return
		}
	case *ast.BinaryExpr:
		if c.Op != token.LAND && c.Op != token.LOR {
			return
		}
	}
	f.replace(cond, cond.Pos(), cond.End(), "condition negated", "!("+f.between(cond.Pos(), cond.End())+")")
}

func (f *finder) flip(result ast.Expr) {
	name, ok := result.(*ast.Ident)
	if !ok || name.Name != "true" && name.Name != "false" {
		return
	}
	other := map[string]string{"true": "false", "false": "true"}[name.Name]
	f.replace(result, result.Pos(), result.End(), name.Name+" to "+other, other)
}

func (f *finder) remove(n ast.Node, kind string) {
	f.replace(n, n.Pos(), n.End(), kind, strings.Repeat("\n", strings.Count(f.between(n.Pos(), n.End()), "\n")))
}

// caseClause removes a case of a switch, and each expression of it if there
// are several. In a switch without a tag the only expression is a condition.
func (f *finder) caseClause(n *ast.CaseClause) {
	f.removeClause(n, n.Colon)
	if block := f.stack[len(f.stack)-3]; isTagless(block) {
		for _, cond := range n.List {
			f.stack = append(f.stack, cond)
			f.negate(cond)
			f.stack = f.stack[:len(f.stack)-1]
		}
	}
	for i, value := range n.List {
		if len(n.List) == 1 {
			break
		}
		from, to := value.Pos(), value.End()
		if i+1 < len(n.List) {
			to = n.List[i+1].Pos()
		} else {
			from = n.List[i-1].End()
		}
		f.replace(value, from, to, "case removed", strings.Repeat("\n", strings.Count(f.between(from, to), "\n")))
		last := f.places[len(f.places)-1]
		last.at, last.clause = f.position(n.Colon), f.position(n.End())
	}
}

// isUse reports whether an assignment, as "_ = x", only satisfies the compiler.
func isUse(n *ast.AssignStmt) bool {
	to, blank := n.Lhs[0].(*ast.Ident)
	_, from := n.Rhs[0].(*ast.Ident)
	return blank && from && to.Name == "_"
}

func isTagless(n ast.Node) bool {
	s, ok := n.(*ast.SwitchStmt)
	return ok && s.Tag == nil
}

// removeClause removes a clause. Tests that reach its body reach it.
func (f *finder) removeClause(n ast.Node, colon token.Pos) {
	f.remove(n, "case removed")
	last := f.places[len(f.places)-1]
	last.at, last.clause = f.position(colon), f.position(n.End())
}

func (f *finder) replace(n ast.Node, from, to token.Pos, kind, text string) {
	p := &place{File: f.file, Dir: filepath.Dir(f.file), Line: f.position(from).line, Kind: kind,
		start: f.offset(from), end: f.offset(to), text: text, src: f.src}
	p.at = f.position(f.reached(n))
	p.anywhere = true
	for _, outer := range f.stack {
		if d, ok := outer.(*ast.FuncDecl); ok {
			p.Func, p.function, p.anywhere = f.nameOf(d), f.position(d.Pos()), false
		}
	}
	f.places = append(f.places, p)
}

// reached returns the position whose block decides whether a node is
// executed. Expressions of a case belong to the block before the switch.
func (f *finder) reached(n ast.Node) token.Pos {
	for i := len(f.stack) - 1; i > 1; i-- {
		switch outer := f.stack[i].(type) {
		case *ast.FuncLit:
			return n.Pos()
		case *ast.CaseClause:
			if n.Pos() < outer.Colon && n != ast.Node(outer) {
				return f.stack[i-2].Pos()
			}
		case *ast.CommClause:
			if n.Pos() < outer.Colon && n != ast.Node(outer) {
				return f.stack[i-2].Pos()
			}
		}
	}
	return n.Pos()
}

func (f *finder) nameOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	receiver := d.Recv.List[0].Type
	return "(" + f.between(receiver.Pos(), receiver.End()) + ")." + d.Name.Name
}

func (f *finder) offset(p token.Pos) int { return f.fset.Position(p).Offset }

func (f *finder) position(p token.Pos) position {
	at := f.fset.Position(p)
	return position{at.Line, at.Column}
}

func (f *finder) between(from, to token.Pos) string { return f.src[f.offset(from):f.offset(to)] }
