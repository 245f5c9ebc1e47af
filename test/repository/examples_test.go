package repository

import (
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The names without an Example, by the reason.
var withoutExample = map[string][]string{
	"It has values, which other Examples use.": {
		"httpretry.Outcome", "httpretry.Reason",
	},
	"The Example of a function that returns it shows it.": {
		"httpretry.OriginStatus", "httpretry.BudgetStatus", "httpretry.Result",
		"otelretry.ResendCount",
		"policyfile.Field", "redisbudget.Budget", "retrytest.Sent",
		"strategies.Rand", "strategies.Sequence",
	},
	"The Example of a function that takes it shows it.": {
		"otelretry.BudgetDecision", "otelretry.Config", "redisbudget.Config",
		"redisbudget.Decision", "retrydebug.Config", "retrytest.T",
	},
	"The Examples of Budget use or implement it.": {
		"httpretry.AttemptResult", "httpretry.Balancer",
	},
	"The Example of Base or Func uses it, or another one that makes a step.": {
		"retrytest.Always", "retrytest.Fails", "retrytest.Hang", "retrytest.Refused",
		"retrytest.Reset", "retrytest.RetryAfter", "retrytest.Status",
	},
}

// TestExamples checks that each exported function and type has an Example that
// runs, unless withoutExample has it.
func TestExamples(t *testing.T) {
	exceptions := map[string]bool{}
	for _, names := range withoutExample {
		for _, name := range names {
			exceptions[name] = true
		}
	}
	own := ownPackages(t)
	for _, name := range []string{"", "/otelretry", "/policies", "/policyfile",
		"/redisbudget", "/retrydebug", "/retrytest", "/strategies"} {
		p := own[module+name]
		require.NotNil(t, p.Package, name)
		have := examplesOf(t, filepath.Join("../..", name))
		check := func(name string) {
			qualified := p.Name + "." + name
			assert.NotEqual(t, have[name], exceptions[qualified], "the Example of %s", qualified)
			delete(exceptions, qualified)
		}
		for _, f := range p.Funcs {
			check(f.Name)
		}
		for _, typ := range p.Types {
			check(typ.Name)
			for _, f := range typ.Funcs {
				check(f.Name)
			}
		}
	}
	assert.Empty(t, exceptions, "names that do not exist")
}

// examplesOf returns the names of which the tests in a folder have an Example
// that runs. An Example of a method counts for its type.
func examplesOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	names := map[string]bool{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, example := range doc.Examples(file) {
			name, _, _ := strings.Cut(example.Name, "_")
			names[name] = assert.NotEmpty(t, example.Output,
				"Example%s in %s has no output", example.Name, path) || names[name]
		}
	}
	return names
}
