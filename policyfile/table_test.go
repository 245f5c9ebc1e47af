package policyfile

import (
	"flag"
	"os"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

// A new field of Policy or HostBudget needs a row in its table, or a reason why
// no file can have it.
func TestTablesAreComplete(t *testing.T) {
	check := func(typ reflect.Type, rows table, without map[string]string) {
		var fields, inTable []string
		for _, row := range rows {
			inTable = append(inTable, row.goAs)
		}
		for _, f := range reflect.VisibleFields(typ) {
			if f.IsExported() && without[f.Name] == "" {
				fields = append(fields, f.Name)
				assert.True(t, slices.Contains(inTable, f.Name),
					"%v.%s has no row, and no reason for that", typ, f.Name)
			}
		}
		for _, name := range inTable {
			assert.True(t, slices.Contains(fields, name),
				"the row of %v.%s is not that of a field for files", typ, name)
		}
		if !t.Failed() {
			assert.Equal(t, fields, inTable, "the order of the rows")
		}
		for name := range without {
			_, ok := typ.FieldByName(name)
			assert.True(t, ok, "%v has no field %s", typ, name)
		}
		for _, row := range rows {
			assert.Equal(t, row.goAs, string(row.name[0]-'a'+'A')+row.name[1:])
		}
	}
	check(reflect.TypeFor[httpretry.Policy](), policyTable, notInFiles)
	check(reflect.TypeFor[httpretry.HostBudget](), budgetTable, nil)
}

// The table of budgets does not grow with the number of files.
func TestUnusedBudgetsAreForgotten(t *testing.T) {
	var l Loader
	for _, name := range []string{"a", "b", "c", "d"} {
		_, err := l.Parse([]byte(`{"default": {"budget": {"name": "` + name + `"}}}`))
		require.NoError(t, err)
		for i := 0; i < 10 && l.budgets[budgetParameters{name: name}].Value() != nil; i++ {
			runtime.GC()
		}
	}
	assert.Len(t, l.budgets, 1)
}

var update = flag.Bool("update", false, "write schema.json")

func TestSchema(t *testing.T) {
	want := schema(t)
	if *update {
		require.NoError(t, os.WriteFile("schema.json", want, 0o644))
	}
	got, err := os.ReadFile("schema.json")
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got), "to write it again: go test ./policyfile -run TestSchema -update")
}
