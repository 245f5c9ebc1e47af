package policyfile

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// schema returns the JSON Schema of files.
func schema(t *testing.T) []byte {
	t.Helper()
	presets := slices.Sorted(maps.Keys(new(Loader).presets()))
	properties := map[string]any{"preset": map[string]any{
		"type": "string", "examples": presets,
		"description": "A policy of package policies, or of the program, whose fields this policy inherits.",
	}}
	for _, f := range policyTable {
		properties[f.name] = f.schema()
	}
	policy := func(about string) map[string]any {
		return map[string]any{"$ref": "#/$defs/policy", "description": about}
	}
	text, err := json.MarshalIndent(map[string]any{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"title":       "Policies of httpretry",
		"description": "How an HTTP client retries requests, by host.",
		"type":        "object",
		"properties": map[string]any{
			"$schema": map[string]any{"type": "string"},
			"version": map[string]any{
				"const":       fileVersion,
				"description": fmt.Sprintf("The version of the format. Default: %d.", fileVersion),
			},
			"default": policy("For requests that no key of policies matches. The others inherit its fields."),
			"policies": map[string]any{
				"description": "Policies by host: api.example.com, api.example.com:8443, *.example.com.",
				"type":        "object", "propertyNames": map[string]any{"minLength": 1},
				"additionalProperties": map[string]any{"$ref": "#/$defs/policy"},
			},
		},
		"additionalProperties": false,
		"$defs": map[string]any{"policy": map[string]any{
			"type": "object", "properties": properties, "additionalProperties": false,
		}},
	}, "", "  ")
	require.NoError(t, err)
	return append(text, '\n')
}
