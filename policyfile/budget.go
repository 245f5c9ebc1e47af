package policyfile

import (
	"reflect"
	"time"
	"weak"

	"github.com/seed421102f4/httpretry"
)

// A namedBudget is a budget in a file. Its name separates it from others with
// the same parameters.
type namedBudget struct {
	httpretry.Budget
	name string
}

// budgetParameters identify a HostBudget.
type budgetParameters struct {
	name   string
	ratio  float64
	burst  int
	window time.Duration
	strict bool
}

func parametersOf(b *httpretry.HostBudget, name string) budgetParameters {
	return budgetParameters{name, b.Ratio, b.Burst, b.Window, b.Strict}
}

// budgets are the HostBudgets of files that were read. A weak pointer keeps a
// budget no longer than the policies that use it: those of a transport, or of a
// File.
type budgets map[budgetParameters]weak.Pointer[httpretry.HostBudget]

// get returns the budget with the parameters of b, which is b if there is none.
func (all budgets) get(b *httpretry.HostBudget, name string) *httpretry.HostBudget {
	if known := all[parametersOf(b, name)].Value(); known != nil {
		return known
	}
	return b
}

// keep remembers the budgets of a file, and forgets those that nothing uses.
func (all budgets) keep(file map[budgetParameters]*httpretry.HostBudget) {
	for parameters, b := range all {
		if b.Value() == nil {
			delete(all, parameters)
		}
	}
	for parameters, b := range file {
		all[parameters] = weak.Make(b)
	}
}

// budget is the kind of Policy.Budget. The parser reads it, since it needs more
// than the value.
func budget() kind {
	properties := map[string]any{
		"name": map[string]any{"type": "string", "description": nameAbout},
	}
	for _, f := range newBudgetTable() {
		properties[f.name] = f.schema()
	}
	return kind{
		want: wantBudget,
		write: func(v any) (any, bool) {
			named, ok := v.(namedBudget)
			if !ok {
				named.Budget, _ = v.(httpretry.Budget)
			}
			return writeBudget(named)
		},
		schema: map[string]any{"oneOf": []any{
			map[string]any{"enum": []string{"default", "unlimited"}},
			map[string]any{
				"type": "object", "properties": properties, "additionalProperties": false,
			},
		}},
	}
}

const wantBudget = `"default", "unlimited" or an object`

const nameAbout = "Separates this budget from others with the same parameters."

func writeBudget(named namedBudget) (any, bool) {
	switch b := named.Budget.(type) {
	case nil:
		return "default", true
	case httpretry.Unlimited:
		return "unlimited", true
	case *httpretry.HostBudget:
		o := object{}
		for _, f := range budgetTable {
			value := reflect.ValueOf(b).Elem().FieldByName(f.goAs)
			if value.IsZero() {
				continue
			}
			text, ok := f.kind.write(value.Interface())
			if !ok {
				return nil, false
			}
			o = append(o, pair{f.name, text})
		}
		if named.name != "" {
			o = append(o, pair{"name", named.name})
		}
		return o, true
	}
	return nil, false
}
