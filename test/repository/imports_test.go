package repository

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/seed421102f4/httpretry"

// imports has the imports of each package besides the standard library.
// "leaves" are the packages of internal without faults and contract, which are
// for tests. A leaf without a row imports nothing.
var imports = map[string]string{
	"":                      "github.com/hashicorp/go-cleanhttp leaves strategies",
	"strategies":            "",
	"policies":              "httpretry leaves strategies",
	"policyfile":            "httpretry leaves policies strategies",
	"policyfile/schematest": "",
	"retrydebug":            "httpretry policyfile",
	"retrytest":             "httpretry leaves",
	"redisbudget": "github.com/redis/go-redis/v9 " +
		"github.com/redis/go-redis/v9/maintnotifications httpretry",
	"otelretry": "go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp " +
		"go.opentelemetry.io/otel go.opentelemetry.io/otel/attribute " +
		"go.opentelemetry.io/otel/metric go.opentelemetry.io/otel/trace httpretry policyfile",

	"internal/cooldown":    "internal/hosttable",
	"internal/origintable": "internal/hosttable",
	"internal/replay":      "internal/bounded",
	"internal/respbody":    "internal/bounded",
	"internal/contract": "github.com/stretchr/testify/assert " +
		"github.com/stretchr/testify/require httpretry internal/faults retrytest strategies",
}

// TestImports checks that the table imports is right. Tests, programs, and the
// packages that programs share, may import anything.
func TestImports(t *testing.T) {
	packages := ownPackages(t)
	for path, p := range packages {
		name := strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
		folder, _, _ := strings.Cut(name, "/")
		if p.Name == "main" || slices.Contains(
			[]string{"bench", "docs", "examples", "integration", "retrylab", "test"}, folder) {
			continue
		}
		var got []string
		for _, imported := range p.Imports {
			host, _, _ := strings.Cut(imported, "/")
			own, isOwn := strings.CutPrefix(imported, module+"/")
			isLeaf := strings.HasPrefix(own, "internal/") && own != "internal/faults" &&
				own != "internal/contract"
			switch {
			case imported == module:
				got = append(got, "httpretry")
			case isOwn && isLeaf && folder != "internal":
				got = append(got, "leaves")
			case isOwn:
				got = append(got, own)
			case strings.Contains(host, "."):
				got = append(got, imported)
			}
		}
		slices.Sort(got)
		_, known := imports[name]
		assert.True(t, known || folder == "internal", "the table has no package %q", name)
		assert.Equal(t, imports[name], strings.Join(slices.Compact(got), " "),
			"the imports of %q", name)
	}
	for name := range imports {
		assert.Contains(t, packages, strings.TrimSuffix(module+"/"+name, "/"))
	}
}

// These modules have versions of their own. An internal package of the core may
// change with each version of the core. If such a module used one, it and its
// tests could fail to compile after an upgrade of the core only.
func TestVersionedModulesUseNoInternals(t *testing.T) {
	for _, folder := range []string{"otelretry", "redisbudget", "retrylab"} {
		for _, name := range filesBelow(t, "../../"+folder, ".go") {
			assert.False(t, strings.Contains(read(t, name), `"`+module+`/internal/`),
				"%s imports an internal package of the core", name)
		}
	}
}

// Package retrytest declares an interface instead of using testing.TB, so that
// a program that imports it gets no flags of package testing.
func TestRetrytestImportsNoTesting(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the go command is needed:", err)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"/retrytest")
	out, err := list.Output()
	require.NoError(t, err)
	imported := strings.Fields(string(out))
	require.Contains(t, imported, module)
	for _, unwanted := range []string{"testing", "net/http/httptest", "flag"} {
		assert.NotContains(t, imported, unwanted)
	}
}

// TestLicenses checks that SECURITY.md has the license of each requirement of
// the released modules, and of no other one.
func TestLicenses(t *testing.T) {
	required := regexp.MustCompile(`(?m)^(?:require |\t)(\S+?)(?:/v\d+)? v`)
	security := read(t, "../../SECURITY.md")
	for name, folder := range map[string]string{
		"core": ".", "otelretry": "otelretry", "redisbudget": "redisbudget", "retrylab": "retrylab",
	} {
		row := regexp.MustCompile(`(?m)^\| ` + name + ` \|.*:.*$`).FindString(security)
		require.NotEmpty(t, row, name)
		names := make(map[string]bool)
		for _, short := range spans(row) {
			names[short] = false
		}
		file := read(t, "../../"+folder+"/go.mod")
		for _, match := range required.FindAllStringSubmatch(file, -1) {
			if match[1] == module {
				continue
			}
			found := false
			for short := range names {
				if strings.HasSuffix(match[1], "/"+short) {
					found, names[short] = true, true
				}
			}
			assert.True(t, found, "SECURITY.md does not have %s of %s", match[1], name)
		}
		for short, found := range names {
			assert.True(t, found, "SECURITY.md: %s does not require %s", name, short)
		}
	}
}
