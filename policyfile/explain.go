package policyfile

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/seed421102f4/httpretry"
)

// A Field is one field of a policy, and where its value is from.
type Field struct {
	Name  string // in a file; of a field that no file can have, in Go
	Value string // JSON, or a description of a default, a negative value or a function
	From  string // "default", `policies["a.test"]`, "preset" and its name, or "" for no place
}

// Fields returns the fields of the policy with a key, or of the default for "".
// They are in the order of [httpretry.Policy]. A field that no file can have is
// among them if a preset sets it. For an unknown key, Fields returns nil.
func (f *File) Fields(key string) []Field {
	own := []source{{f.base, "default", ""}}
	if key != "" {
		own[0].suffix = " of default"
		i := slices.IndexFunc(f.entries, func(e entry) bool { return e.key == key })
		if i < 0 {
			return nil
		}
		own = append([]source{{f.entries[i], policyPath(key), ""}}, own...)
	}
	var all []Field
	for _, goField := range reflect.VisibleFields(reflect.TypeFor[httpretry.Policy]()) {
		i := slices.IndexFunc(policyTable, func(f field) bool { return f.goAs == goField.Name })
		known := field{name: goField.Name, goAs: goField.Name}
		if i >= 0 {
			known = policyTable[i]
		}
		v, from := find(own, known)
		if from == "" && i < 0 {
			continue
		}
		all = append(all, Field{known.name, known.describe(v), from})
	}
	return all
}

// A source is an entry from which a policy has fields.
type source struct {
	entry
	path   string
	suffix string // of the description of its preset
}

// find returns the value of a field from the first source that sets it.
func find(sources []source, f field) (v any, from string) {
	for _, s := range sources {
		if v, ok := s.own[f.name]; ok {
			return v, s.path
		}
		if v := reflect.ValueOf(s.presetPolicy).FieldByName(f.goAs); !v.IsZero() {
			return v.Interface(), "preset " + s.preset + s.suffix
		}
	}
	return nil, ""
}

// describe returns the text of a value.
func (f field) describe(v any) string {
	// Whether v is the default depends on the type of the field. Unlimited{} is
	// a zero value, but not that of a field of the type Budget.
	var p httpretry.Policy
	setField(reflect.ValueOf(&p).Elem(), f.goAs, v)
	r := reflect.ValueOf(p).FieldByName(f.goAs)
	switch {
	case r.IsZero():
		return f.zero
	case f.kind.negative != "" && r.Int() < 0:
		return f.kind.negative
	}
	if f.kind.write != nil {
		if written, ok := f.kind.write(v); ok {
			// Values of the table have no part that JSON cannot contain.
			if text, err := json.Marshal(written); err == nil {
				return string(text)
			}
		}
	}
	if r.Kind() == reflect.Func {
		return "a function"
	}
	return fmt.Sprintf("a %T", v)
}
