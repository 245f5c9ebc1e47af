package repository

import (
	"go/doc"
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
// runs, unless withoutExample has it. An Example of a method counts for its type.
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
		all := p.Examples
		check := func(name string, examples []*doc.Example) {
			qualified := p.Name + "." + name
			assert.NotEqual(t, len(examples) > 0, exceptions[qualified],
				"the Example of %s", qualified)
			delete(exceptions, qualified)
			all = append(all, examples...)
		}
		for _, f := range p.Funcs {
			check(f.Name, f.Examples)
		}
		for _, typ := range p.Types {
			examples := typ.Examples
			for _, method := range typ.Methods {
				examples = append(examples, method.Examples...)
			}
			check(typ.Name, examples)
			for _, f := range typ.Funcs {
				check(f.Name, f.Examples)
			}
		}
		for _, example := range all {
			assert.NotEmpty(t, example.Output, "Example%s in %s has no output",
				example.Name, p.ImportPath)
		}
	}
	assert.Empty(t, exceptions, "names that do not exist")
}
