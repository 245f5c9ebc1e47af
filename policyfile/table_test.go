package policyfile

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/defaults"
	"github.com/seed421102f4/httpretry/internal/fielderr"
	"github.com/seed421102f4/httpretry/strategies"
)

// notInFiles has the fields of Policy that come from presets only, and the
// reasons.
var notInFiles = map[string]string{
	"RetryAfter":  "a function of the response",
	"CooldownKey": "a function of the request",
	"Classify":    "a function of the response",
	"ResumeSame":  "a function of two responses",
}

// A new field of Policy or HostBudget needs a row in its table, in the order of
// the fields, or a reason why no file can have it.
func TestTablesAreComplete(t *testing.T) {
	check := func(typ reflect.Type, rows table, without map[string]string) {
		var want, got []string
		for _, f := range reflect.VisibleFields(typ) {
			if f.IsExported() && without[f.Name] == "" {
				want = append(want, f.Name)
			}
		}
		for _, row := range rows {
			// A list of statuses changes a field that no file can have.
			if row.isList() {
				require.NotEmpty(t, without[row.goAs], row.name)
				continue
			}
			got = append(got, row.goAs)
			require.Equal(t, row.goAs, string(row.name[0]-'a'+'A')+row.name[1:])
		}
		require.Equal(t, want, got, "rows, and fields of %v that are not in notInFiles", typ)
		for name := range without {
			_, ok := typ.FieldByName(name)
			require.True(t, ok, "%v has no field %s, but a reason for it", typ, name)
		}
	}
	check(reflect.TypeFor[httpretry.Policy](), policyTable, notInFiles)
	check(reflect.TypeFor[httpretry.HostBudget](), budgetTable, nil)
}

// Each default that is shown is the value that the transport uses. All other
// fields have no value by default.
func TestShownDefaultsAreThoseOfTheTransport(t *testing.T) {
	want := map[string]any{
		"MaxAttempts":   int64(defaults.MaxAttempts),
		"MaxRetryAfter": defaults.MaxRetryAfter,
		"Backoff": strategies.DecorrelatedV2{
			Median: defaults.Median, Max: defaults.MaxWait},
		"Cooldown":          httpretry.CooldownSend,
		"IdempotencyHeader": defaults.IdempotencyHeader,
		"ReplayBuffer":      int64(defaults.ReplayBuffer),
		"Ratio":             defaults.Ratio,
		"Burst":             int64(defaults.Burst),
		"Window":            defaults.Window,
	}
	without := []string{"no timeout", "no limit", "false", "none", "by method and key",
		"one that all policies share"}
	for _, f := range slices.Concat(policyTable, budgetTable) {
		shown := f.zero
		if f.goAs == "Backoff" {
			patient := fmt.Sprintf("(Median=%v after a 429, and while the host fails)",
				defaults.MedianPatient)
			require.Contains(t, shown, patient, f.name)
			shown, _, _ = strings.Cut(shown, " (")
		}
		if want[f.goAs] == nil {
			assert.Contains(t, without, shown, f.name)
			continue
		}
		// One of both kinds is right for the field.
		v, err := f.kind.read(&node{kind: '"', text: shown})
		if err != nil {
			v, err = f.kind.read(&node{kind: '0', text: shown})
		}
		require.NoError(t, err, f.name)
		assert.Equal(t, want[f.goAs], v, "%s: the default that is shown", f.name)
	}
}

// countedText counts how often it is made.
type countedText int

func (c *countedText) String() string {
	*c++
	return ""
}

// A problem that is not among the first costs no text.
func TestOnlyTheFirstProblemsAreMade(t *testing.T) {
	var r reading
	var made countedText
	for i := range 1000 {
		r.report(i, "", "%v", &made)
	}
	assert.Equal(t, maxErrors, int(made))
	assert.Equal(t, 1000, r.count())
	assert.Len(t, r.problems.first, maxErrors)
}

// A problem that no field of the file causes has no position.
func TestLocatedWithoutAPlace(t *testing.T) {
	const text = `{"default": {"maxAttempts": 4}, "policies": {"a.test": {}}}`
	f, err := Parse([]byte(text))
	require.NoError(t, err)
	problem := fielderr.AtField("MaxElapsed", fielderr.New("1ns", "more"))
	err = f.located([]byte(text), fielderr.At("httpretry", fielderr.Join(
		fielderr.At("policy", problem),
		fielderr.At("policies", fielderr.AtKey("a.test", errors.New("is no host"))),
		fielderr.At("policies", fielderr.AtKey("b.test", problem)),
	)))
	assert.EqualError(t, err, `1:1: httpretry: policy.MaxElapsed: 1ns: want more
1:1: httpretry: policies["a.test"]: is no host
1:1: httpretry: policies["b.test"].MaxElapsed: 1ns: want more`)
}

// A budget that nothing uses is not kept, and the table of budgets does not grow
// with the number of files.
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
