package policyfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"

	"github.com/seed421102f4/httpretry"
)

// An object is a JSON object whose members have an order.
type object []pair

type pair struct {
	name  string
	value any
}

// MarshalJSON returns o as JSON.
func (o object) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, p := range o {
		name, err := json.Marshal(p.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(p.value)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, name...), ':'), value...)
	}
	return append(b, '}'), nil
}

// MarshalJSON returns the contents of f without $schema. Parse reads an equal
// File from them, if its Loader has the same presets.
func (f *File) MarshalJSON() ([]byte, error) {
	policies := object{}
	for _, e := range f.entries {
		policies = append(policies, pair{e.key, e.object()})
	}
	return json.Marshal(object{{"default", f.base.object()}, {"policies", policies}})
}

// object returns e as it is in a file. All its values are from a file, or were
// checked when the entry was made.
func (e entry) object() object {
	o := object{}
	if e.preset != "" {
		o = append(o, pair{"preset", e.preset})
	}
	for _, f := range policyTable {
		if v, ok := e.own[f.name]; ok {
			written, _ := f.kind.write(v)
			o = append(o, pair{f.name, written})
		}
	}
	return o
}

// Format returns the contents of a file with the policies of a program, which
// are those of [httpretry.Config]. Parse returns a File with equal policies. It
// has no presets, so these values are errors, as are those that are not valid:
//
//   - a function other than [httpretry.RandomKey] and the Idempotent of a File
//   - a Budget other than [httpretry.HostBudget] and [httpretry.Unlimited]
//   - a Backoff for which [strategies.Format] returns an error
func Format(policy httpretry.Policy, policies map[string]httpretry.Policy) ([]byte, error) {
	_, err := httpretry.New(httpretry.Config{
		Base: http.DefaultTransport, Policy: policy, Policies: policies, AttemptHeader: "-",
	})
	if err != nil {
		return nil, err
	}
	w := writing{names: map[*httpretry.HostBudget]string{}, taken: map[budgetParameters]bool{}}
	f := File{base: w.entry(policy, httpretry.Policy{}, "Policy")}
	for _, key := range slices.Sorted(maps.Keys(policies)) {
		e := w.entry(policies[key], policy, fmt.Sprintf("Policies[%q]", key))
		e.key = key
		f.entries = append(f.entries, e)
	}
	if err := errors.Join(w.problems...); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	err = encoder.Encode(&f)
	if text.Len() > MaxSize {
		return nil, fmt.Errorf("policyfile: %d bytes: want at most %d", text.Len(), MaxSize)
	}
	return text.Bytes(), err
}

// A writing is a file that is being written.
type writing struct {
	problems []error
	names    map[*httpretry.HostBudget]string
	taken    map[budgetParameters]bool
}

// entry returns the fields in which p differs from base.
func (w *writing) entry(p, base httpretry.Policy, path string) entry {
	e := entry{own: map[string]any{}}
	own, inherited := reflect.ValueOf(p), reflect.ValueOf(base)
	for _, name := range slices.Sorted(maps.Keys(notInFiles)) {
		if !own.FieldByName(name).IsZero() {
			w.problem(path, name, own.FieldByName(name).Interface())
		}
	}
	for _, f := range policyTable {
		given := own.FieldByName(f.goAs).Interface()
		v := w.named(given)
		written, ok := f.kind.write(v)
		if !ok {
			w.problem(path, f.goAs, given)
			continue
		}
		before, ok := f.kind.write(w.named(inherited.FieldByName(f.goAs).Interface()))
		if !ok || !reflect.DeepEqual(written, before) {
			e.own[f.name] = v
		}
	}
	return e
}

func (w *writing) problem(path, name string, v any) {
	const want = "want a value that a file can contain, or a preset"
	w.problems = append(w.problems, fmt.Errorf("policyfile: %s.%s: a %T: %s", path, name, v, want))
}

// named gives a name to a budget if another one has the same parameters, so
// that they remain two.
func (w *writing) named(v any) any {
	b, ok := v.(*httpretry.HostBudget)
	if !ok {
		return v
	}
	name, ok := w.names[b]
	if !ok {
		if w.taken[parametersOf(b, "")] {
			name = fmt.Sprintf("budget %d", len(w.names)+1)
		}
		w.taken[parametersOf(b, "")] = true
		w.names[b] = name
	}
	return namedBudget{b, name}
}
