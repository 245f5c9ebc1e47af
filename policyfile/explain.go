package policyfile

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/seed421102f4/httpretry"
)

// A Field is one field of a policy, and where its value is from.
type Field struct {
	Name  string // in a file; of a field that no file can have, in Go
	Value string // JSON, or a description of a default, a negative value or a function

	// From is where Value is set: "default", `policies["a.test"]`, or "preset"
	// and its name. It is "" if Value is the default of httpretry.
	From string

	_ struct{} // precludes unkeyed literals, because fields may be added
}

// Fields returns the fields of the policy with a key, or of the default for "".
// They are in the order of [httpretry.Policy], with the lists of statuses after
// the place of Classify. They include fields that a file cannot have, such as
// Classify, if a preset sets them. For an unknown key, Fields returns nil.
func (f *File) Fields(key string) []Field {
	sources := f.sources(key)
	if sources == nil {
		return nil
	}
	var all []Field
	for _, goField := range reflect.VisibleFields(reflect.TypeFor[httpretry.Policy]()) {
		field, inFiles := policyTable.forGo(goField.Name)
		v, from := find(sources, field)
		// Nothing sets a field that no file can have, unless a preset does.
		if inFiles || from.member != "" {
			all = append(all,
				Field{Name: field.name, Value: field.describe(v), From: from.String()})
		}
		for _, list := range policyTable.listsFor(goField.Name) {
			statuses, from := list.statuses(sources)
			value := list.zero
			if len(statuses) > 0 {
				value = list.kind.json(statuses)
			}
			all = append(all, Field{Name: list.name, Value: value, From: from.String()})
		}
	}
	return all
}

// A source is an entry from which a policy has fields.
type source struct {
	entry
	key    string // "" for the default
	path   string
	suffix string // of the description of its preset
}

// sources returns the entries from which the policy with a key has its fields,
// the first ones first, or nil for an unknown key.
func (f *File) sources(key string) []source {
	if key == "" {
		return []source{{f.base, "", "default", ""}}
	}
	e, ok := f.entries[key]
	if !ok {
		return nil
	}
	return []source{{e, key, policyPath(key), ""}, {f.base, "", "default", " of default"}}
}

// A place is a member of an entry.
type place struct {
	source
	member string // "" for no place
}

// String returns the text of Field.From.
func (p place) String() string {
	switch p.member {
	case "":
		return ""
	case "preset":
		return "preset " + p.preset + p.suffix
	}
	return p.path
}

// find returns the value of a field from the first source that sets it.
func find(sources []source, f field) (v any, from place) {
	for _, s := range sources {
		if v, ok := s.own[f.name]; ok {
			return v, place{s, f.name}
		}
		if v := reflect.ValueOf(s.presetPolicy).FieldByName(f.goAs); !v.IsZero() {
			return v.Interface(), place{s, "preset"}
		}
	}
	return nil, place{}
}

// statuses returns the list of statuses that is in effect for the policy of the
// first source, and the place that sets it.
func (f field) statuses(sources []source) ([]int, place) {
	own := sources[0]
	if list, ok := own.own[f.name]; ok {
		return list.([]int), place{own, f.name}
	}
	// A preset decides about all statuses.
	if len(sources) == 1 || own.preset != "" {
		return nil, place{}
	}
	base := sources[1]
	inherited, ok := base.own[f.name]
	if !ok {
		return nil, place{}
	}
	// The policy's own lists have precedence over all of the default.
	rest := slices.DeleteFunc(slices.Clone(inherited.([]int)), own.lists)
	return rest, place{base, f.name}
}

// lists reports whether a list of e has a status.
func (e entry) lists(status int) bool {
	for _, f := range policyTable.listsFor("Classify") {
		if list, ok := e.own[f.name].([]int); ok && slices.Contains(list, status) {
			return true
		}
	}
	return false
}

// withStatuses returns p, the policy of the first source, with its lists of
// statuses.
func withStatuses(p httpretry.Policy, sources []source) httpretry.Policy {
	for _, f := range policyTable.listsFor("Classify") {
		if list, _ := f.statuses(sources); len(list) > 0 {
			p = f.kind.apply(p, list)
		}
	}
	return p
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
	if text := f.kind.json(v); text != "" {
		return text
	}
	// Only a preset has such a value.
	if r.Kind() == reflect.Func {
		return "a function"
	}
	return fmt.Sprintf("a %T", v)
}
