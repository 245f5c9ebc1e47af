package repository

import (
	"fmt"
	"go/ast"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/internal/defaults"
)

// The comment on each field says what its zero value means.
//
// redisbudget has constants of its own, because an upgrade of the core only must
// not change them. Its tests compare what they allow with a HostBudget.
func TestDefaultsAreDocumented(t *testing.T) {
	hostBudget := map[string]string{
		"Ratio":  fmt.Sprintf("0 means %v.", defaults.Ratio),
		"Burst":  fmt.Sprintf("0 means %d;", defaults.Burst),
		"Window": fmt.Sprintf("0 means %g seconds.", defaults.Window.Seconds()),
	}
	packages := ownPackages(t)
	for path, want := range map[string]map[string]string{
		module + " Policy": {
			"MaxAttempts": fmt.Sprintf("0 means %d;", defaults.MaxAttempts),
			"Backoff": fmt.Sprintf("Nil means strategies.DecorrelatedV2{Median: %v, Max: %v}. "+
				"After a 429 (Too Many Requests), and while the host has not succeeded since an "+
				"earlier failure, it means the same with a Median of %v.",
				defaults.Median, defaults.MaxWait, defaults.MedianPatient),
			"MaxRetryAfter":     fmt.Sprintf("0 means %gs;", defaults.MaxRetryAfter.Seconds()),
			"IdempotencyHeader": fmt.Sprintf(`"" means %q`, defaults.IdempotencyHeader),
			"ReplayBuffer":      fmt.Sprintf("0 means %g KiB;", defaults.ReplayBuffer/1024.0),
		},
		module + " HostBudget":         hostBudget,
		module + "/redisbudget Config": hostBudget,
	} {
		importPath, name, _ := strings.Cut(path, " ")
		comments := fieldComments(packages[importPath], name)
		for field, text := range want {
			assert.Contains(t, comments[field], text, "the comment on %s.%s", name, field)
		}
	}
}

// fieldComments returns the comments on the fields of a struct, each on one
// line.
func fieldComments(p documented, name string) map[string]string {
	comments := map[string]string{}
	for _, typ := range p.Types {
		if typ.Name != name {
			continue
		}
		spec := typ.Decl.Specs[0].(*ast.TypeSpec)
		for _, field := range spec.Type.(*ast.StructType).Fields.List {
			text := field.Doc.Text() + field.Comment.Text()
			for _, n := range field.Names {
				comments[n.Name] = strings.Join(strings.Fields(text), " ")
			}
		}
	}
	return comments
}
