package policyfile

import (
	"reflect"
	"strings"
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

// budget is the kind of Policy.Budget. reading.budget reads it, because the
// other budgets of the file matter.
func budget() kind {
	properties := map[string]any{
		"name": map[string]any{"type": "string", "description": nameAbout},
	}
	for _, f := range newBudgetTable() {
		properties[f.name] = f.schema()
	}
	return kind{
		want:  wantBudget,
		write: writeBudget,
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

// writeBudget returns a namedBudget of a file, or the Budget of a preset, as
// JSON, or "" if a file cannot contain it.
func writeBudget(v any) string {
	named, ok := v.(namedBudget)
	if !ok {
		named.Budget, _ = v.(httpretry.Budget)
	}
	switch b := named.Budget.(type) {
	case httpretry.Unlimited:
		return `"unlimited"`
	case *httpretry.HostBudget:
		// In the order of the table. A map would have that of the alphabet.
		var members []string
		for _, f := range budgetTable {
			if value := reflect.ValueOf(b).Elem().FieldByName(f.goAs); !value.IsZero() {
				members = append(members, jsonOf(f.name)+":"+f.kind.json(value.Interface()))
			}
		}
		if named.name != "" {
			members = append(members, `"name":`+jsonOf(named.name))
		}
		return "{" + strings.Join(members, ",") + "}"
	}
	return ""
}
