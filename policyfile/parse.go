package policyfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/fielderr"
	"github.com/seed421102f4/httpretry/internal/hostpattern"
)

// maxErrors is the most errors that Parse returns, so that a file of another
// kind does not make thousands.
const maxErrors = 100

// fileVersion is the version of the files that Parse reads.
const fileVersion = 1

// A reading is a file that is being read.
type reading struct {
	data     []byte
	problems problems
	warned   problems // likely mistakes, and unknown fields with ignoreUnknown

	ignoreUnknown bool

	presets map[string]httpretry.Policy
	known   budgets // of other files
	budgets map[budgetParameters]*httpretry.HostBudget
	named   map[string]budgetParameters
}

func newReading(l *Loader, data []byte) *reading {
	return &reading{
		data: data, ignoreUnknown: l.IgnoreUnknown, presets: l.presets(), known: l.budgets,
		budgets: map[budgetParameters]*httpretry.HostBudget{}, named: map[string]budgetParameters{},
	}
}

// A problem is an Error whose position is an offset.
type problem struct {
	offset     int
	path, text string
}

// problems are those of a file.
type problems struct {
	first []problem // maxErrors of them, in the order of their positions
	more  int       // the number of others
}

func (all *problems) add(offset int, path, format string, args ...any) {
	// A problem before those that are kept replaces the last of them.
	i, _ := slices.BinarySearchFunc(all.first, offset+1, func(p problem, end int) int {
		return cmp.Compare(p.offset, end)
	})
	if i == maxErrors {
		all.more++
		return
	}
	if len(all.first) == maxErrors {
		all.first = all.first[:maxErrors-1]
		all.more++
	}
	text := fmt.Sprintf(format, args...)
	all.first = slices.Insert(all.first, i, problem{offset, path, text})
}

// errors returns the first problems of a file with these contents.
func (all *problems) errors(data []byte) []*Error {
	var errs []*Error
	for _, p := range all.first {
		line, column := position{data, p.offset}.find()
		errs = append(errs, &Error{Line: line, Column: column, Path: p.path, Problem: p.text})
	}
	return errs
}

func (r *reading) report(offset int, path, format string, args ...any) {
	r.problems.add(offset, path, format, args...)
}

// count returns the number of problems that were reported.
func (r *reading) count() int { return len(r.problems.first) + r.problems.more }

// unwanted reports a value of the wrong kind.
func (r *reading) unwanted(n *node, path, want string) {
	r.report(n.offset, path, "%v: want %s", n, want)
}

// file reads a whole file.
func (r *reading) file() *File {
	// Nothing else can be said about a text that is not JSON.
	root, err := readTree(r.data)
	if syntax, ok := errors.AsType[*syntaxError](err); ok {
		r.report(syntax.offset, "", "%s", syntax.text)
		return nil
	}
	// Nor can more be said about a file of a later version.
	if later := laterVersion(root); later != nil {
		r.unwanted(later, "version", wantVersion)
		return nil
	}
	f := &File{entries: map[string]entry{}, policies: map[string]httpretry.Policy{}}
	// The policies may come before the default that they inherit.
	var policies *node
	r.members(root, "", topFields, func(m member) {
		switch {
		case m.name == "default":
			f.base = r.entry(m.value, "default")
		case m.name == "policies" && m.value.kind == '{':
			policies = m.value
		case m.name == "policies":
			r.unwanted(m.value, m.name, "an object with a policy for each pattern")
		case m.name == "version":
			if _, err := version().read(m.value); err != nil {
				r.unwanted(m.value, m.name, wantVersion)
			}
		case m.value.kind != '"': // $schema
			r.unwanted(m.value, m.name, "text")
		}
	})
	// Lists of statuses are not inherited with Classify, so they come last.
	inherited := f.base.policy(httpretry.Policy{})
	f.policy = withStatuses(inherited, f.sources(""))
	r.check(f.policy, f.sources(""))
	if policies != nil { // neither missing nor reported
		r.policies(f, policies, inherited)
	}
	return f
}

// policies reads the policies of f, which inherit from base.
func (r *reading) policies(f *File, n *node, base httpretry.Policy) {
	offsets := map[string]int{}
	r.members(n, "policies", nil, func(m member) {
		offsets[m.name] = m.offset
		e := r.entry(m.value, policyPath(m.name))
		f.entries[m.name] = e
		f.policies[m.name] = withStatuses(e.policy(base), f.sources(m.name))
		r.check(f.policies[m.name], f.sources(m.name))
	})
	r.checkPatterns(offsets)
}

var topFields = []string{"$schema", "version", "default", "policies"}

// version is the kind of the field version.
func version() kind { return integer(fileVersion, fileVersion) }

var wantVersion = fmt.Sprintf("%d, the version that this program reads", fileVersion)

// laterVersion returns the version of a file that is a later one, and else nil.
func laterVersion(root *node) *node {
	i := slices.IndexFunc(root.members, func(m member) bool { return m.name == "version" })
	if i < 0 {
		return nil
	}
	n := root.members[i].value
	// A version may be too large for an integer.
	if x, _ := strconv.ParseFloat(n.text, 64); n.kind != '0' || x < fileVersion+1 {
		return nil
	}
	return n
}

func policyPath(key string) string { return "policies[" + quote(key) + "]" }

// members calls visit for each member of n, which is an object with the given
// fields, or with any if there are none. It reports all others.
func (r *reading) members(n *node, path string, fields []string, visit func(member)) {
	if n.kind != '{' {
		r.unwanted(n, path, "an object with "+list(fields))
		return
	}
	first := map[string]int{}
	for _, m := range n.members {
		at := join(path, m.name, fields == nil)
		// encoding/json would take the last one.
		if before, ok := first[m.name]; ok {
			first := position{r.data, before}
			r.report(m.offset, at, "repeats a field: want only that of %v", first)
			continue
		}
		first[m.name] = m.offset
		switch {
		case fields == nil || slices.Contains(fields, m.name):
			visit(m)
		case r.ignoreUnknown:
			r.warned.add(m.offset, at, "unknown field, which is ignored: want %s", list(fields))
		default:
			r.report(m.offset, at, "unknown field: want %s", list(fields))
		}
	}
}

func list(fields []string) string {
	last := len(fields) - 1
	return strings.Join(fields[:last], ", ") + " or " + fields[last]
}

// join returns the path of a member.
func join(path, name string, isKey bool) string {
	switch {
	case isKey:
		return policyPath(name)
	case len(name) > maxQuoted || strings.ContainsFunc(name, isNotPlain):
		name = "[" + quote(name) + "]"
	case path != "":
		name = "." + name
	}
	return path + name
}

// isNotPlain reports whether a name with r has to be quoted.
func isNotPlain(r rune) bool {
	return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '$'
}

// entry reads one policy.
func (r *reading) entry(n *node, path string) entry {
	e := entry{own: map[string]any{}, offset: n.offset, offsets: map[string]int{}}
	names := append([]string{"preset"}, policyTable.names()...)
	listed := map[int]int{}
	r.members(n, path, names, func(m member) {
		at := join(path, m.name, false)
		e.offsets[m.name] = m.value.offset
		switch f, _ := policyTable.named(m.name); {
		case m.name == "preset":
			r.preset(&e, m.value, at)
		case m.name == "budget":
			if b, ok := r.budget(m.value, at); ok {
				e.own[m.name] = b
			}
		case f.isList():
			if list, ok := r.statuses(f, m.value, at, listed); ok {
				e.own[m.name] = list
			}
		default:
			// A Policy with this field alone, so that an error is about it. Only
			// resumeIdle needs another field.
			p := httpretry.Policy{Resume: f.goAs == "ResumeIdle"}
			if v, ok := r.value(f, m.value, at, reflect.ValueOf(&p).Elem()); ok {
				e.own[m.name] = v
			}
		}
	})
	// A policy that does not resume inherits no limit for it.
	if _, ok := e.own["resumeIdle"]; !ok && e.own["resume"] == false {
		e.own["resumeIdle"] = time.Duration(0)
	}
	return e
}

// check reports the problems that p, the policy of the first source, has and
// that none of its fields has alone. A policy that inherits such a field is no
// place to correct it. check also adds the warnings about p.
func (r *reading) check(p httpretry.Policy, sources []source) {
	own := sources[0]
	for _, problem := range fielderr.Problems(p.Validate()) {
		f, _ := policyTable.forGo(problem.Field)
		if _, ok := own.own[f.name]; ok {
			path := join(own.path, f.name, false)
			r.report(own.offsets[f.name], path, "%s", problem.Text())
		}
	}
	r.warn(p, sources)
}

// value reads one field. It reports a value that the Validate method of target,
// a zero Policy or HostBudget, rejects.
func (r *reading) value(f field, n *node, path string, target reflect.Value) (any, bool) {
	v, err := f.kind.read(n)
	switch {
	case errors.Is(err, errUnwanted):
		r.unwanted(n, path, f.kind.want)
		return nil, false
	case err != nil:
		r.report(n.offset, path, "%s", onOneLine(err))
		return nil, false
	}
	// The bounds of a field have one home, the Validate method.
	setField(target, f.goAs, v)
	err = target.Addr().Interface().(interface{ Validate() error }).Validate()
	if err != nil {
		var texts []string
		for _, p := range fielderr.Problems(err) { // all of this field
			texts = append(texts, p.Text())
		}
		r.report(n.offset, path, "%s", strings.Join(texts, "; "))
		return nil, false
	}
	return v, true
}

// setField sets a field of a struct to the value of a file.
func setField(target reflect.Value, name string, v any) {
	field := target.FieldByName(name)
	switch v := v.(type) {
	case nil: // of an interface, which reflect.ValueOf does not know
		field.SetZero()
	case namedBudget:
		setField(target, name, any(v.Budget))
	default:
		// Integers are int64 in a file, and int in some fields.
		field.Set(reflect.ValueOf(v).Convert(field.Type()))
	}
}

func onOneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (r *reading) preset(e *entry, n *node, path string) {
	p, ok := r.presets[n.text]
	if n.kind != '"' || !ok {
		r.unwanted(n, path, "one of "+strings.Join(slices.Sorted(maps.Keys(r.presets)), ", "))
		return
	}
	// Nobody has checked the presets of the program before.
	if err := p.Validate(); err != nil {
		r.report(n.offset, path, "%v: the preset is not valid: %s", n, onOneLine(err))
		return
	}
	e.preset, e.presetPolicy = n.text, p
}

// statuses reads a list of statuses. It reports a status that is in this list
// or in another one of the policy before. The map has the offset of each.
func (r *reading) statuses(f field, n *node, path string, listed map[int]int) ([]int, bool) {
	if n.kind != '[' {
		r.unwanted(n, path, f.kind.want)
		return nil, false
	}
	list := []int{}
	for i, item := range n.items {
		at := fmt.Sprintf("%s[%d]", path, i)
		v, err := status().read(item)
		if err != nil {
			r.unwanted(item, at, status().want)
			continue
		}
		status := int(v.(int64))
		if offset, ok := listed[status]; ok {
			first := position{r.data, offset}
			r.report(item.offset, at, "%d: repeats a status: want only that of %v", status, first)
			continue
		}
		listed[status] = item.offset
		list = append(list, status)
	}
	return list, true
}

// budget reads a budget.
func (r *reading) budget(n *node, path string) (namedBudget, bool) {
	switch {
	case n.kind == '"' && n.text == "default":
		return namedBudget{}, true
	case n.kind == '"' && n.text == "unlimited":
		return namedBudget{Budget: httpretry.Unlimited{}}, true
	case n.kind != '{':
		r.unwanted(n, path, wantBudget)
		return namedBudget{}, false
	}
	b, name, before := new(httpretry.HostBudget), "", r.count()
	r.members(n, path, append(budgetTable.names(), "name"), func(m member) {
		at := join(path, m.name, false)
		switch f, ok := budgetTable.named(m.name); {
		case ok:
			// A HostBudget with this field alone, as in entry.
			var alone httpretry.HostBudget
			if v, ok := r.value(f, m.value, at, reflect.ValueOf(&alone).Elem()); ok {
				setField(reflect.ValueOf(b).Elem(), f.goAs, v)
			}
		case m.value.kind != '"':
			r.unwanted(m.value, at, "text")
		default:
			name = m.value.text
		}
	})
	// A budget with a wrong field must not be compared with others.
	if r.count() > before {
		return namedBudget{}, false
	}
	parameters := parametersOf(b, name)
	if other, ok := r.named[name]; ok && other != parameters && name != "" {
		const text = "another budget has the name %s: want the same parameters, or another name"
		r.report(n.offset, path, text, quote(name))
		return namedBudget{}, false
	}
	r.named[name] = parameters
	// Equal objects are one budget, in this file and in those before.
	if r.budgets[parameters] == nil {
		r.budgets[parameters] = r.known.get(b, name)
	}
	return namedBudget{r.budgets[parameters], name}, true
}

// checkPatterns reports the keys that New rejects, by their offsets.
func (r *reading) checkPatterns(offsets map[string]int) {
	// Its problems are those of New, with the position of the key.
	_, problems := hostpattern.Parse(offsets, `"default"`)
	for _, p := range problems {
		r.report(offsets[p.Pattern], policyPath(p.Pattern), "%s", p.Text)
	}
}

// error returns all problems in the order of their positions.
func (r *reading) error() error {
	all := asErrors(r.problems.errors(r.data))
	if r.problems.more > 0 {
		all = append(all, fmt.Errorf("and %d more problems", r.problems.more))
	}
	return errors.Join(all...)
}

func asErrors(list []*Error) []error {
	var all []error
	for _, e := range list {
		all = append(all, e)
	}
	return all
}

// A position is that of an offset in a file. It is found when it is needed,
// because that takes time in proportion to the offset.
type position struct {
	data   []byte
	offset int
}

// find returns the line and the column.
func (p position) find() (line, column int) {
	before := p.data[:p.offset]
	start := bytes.LastIndexByte(before, '\n') + 1
	return bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[start:]) + 1
}

func (p position) String() string {
	line, column := p.find()
	return fmt.Sprintf("line %d, column %d", line, column)
}
