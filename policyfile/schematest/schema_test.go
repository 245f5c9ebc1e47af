package schematest_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policyfile"
)

func compile(t *testing.T) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	schema, err := c.Compile("../schema.json")
	require.NoError(t, err)
	return schema
}

// validate returns the error of the schema for a file.
func validate(t *testing.T, schema *jsonschema.Schema, text []byte) error {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err, "%s", text)
	return schema.Validate(value)
}

// The schema is itself valid by the schema of schemas.
func TestSchemaIsValid(t *testing.T) {
	meta, err := jsonschema.NewCompiler().Compile("https://json-schema.org/draft/2020-12/schema")
	require.NoError(t, err)
	text, err := os.ReadFile("../schema.json")
	require.NoError(t, err)
	require.NoError(t, validate(t, meta, text))
	var head map[string]any
	require.NoError(t, json.Unmarshal(text, &head))
	assert.Equal(t, "https://json-schema.org/draft/2020-12/schema", head["$schema"])
}

// The schema and the parser agree on each file, except for the mistakes that no
// schema can describe.
func TestSchemaAgreesWithParser(t *testing.T) {
	schema := compile(t)
	for _, c := range []struct {
		folder           string
		schemaOK, parsed bool
	}{
		{"valid", true, true}, {"invalid", false, false}, {"beyond_schema", true, false},
	} {
		files, err := filepath.Glob("../testdata/" + c.folder + "/*.json")
		require.NoError(t, err)
		require.Greater(t, len(files), 5)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			_, err = policyfile.Parse(text)
			assert.Equal(t, c.parsed, err == nil, "the parser: %s: %v", file, err)
			err = validate(t, schema, text)
			assert.Equal(t, c.schemaOK, err == nil, "the schema: %s: %v", file, err)
		}
	}
}

// The file of the example names this schema, is valid by it, and each mistake
// in it is marked.
func TestExampleIsValid(t *testing.T) {
	const folder = "../../examples/operate"
	text, err := os.ReadFile(filepath.Join(folder, "policies.json"))
	require.NoError(t, err)
	var head struct {
		Schema string `json:"$schema"`
	}
	require.NoError(t, json.Unmarshal(text, &head))
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join(folder, head.Schema))
	require.NoError(t, err)
	require.NoError(t, validate(t, schema, text))
	assert.Error(t, validate(t, schema,
		bytes.Replace(text, []byte("maxAttempts"), []byte("maxAttemps"), 1)))
}

// Files of Format and MarshalJSON are valid by the schema.
func TestWrittenFilesAreValid(t *testing.T) {
	schema := compile(t)
	text, err := policyfile.Format(
		httpretry.Policy{MaxAttempts: 2, Budget: &httpretry.HostBudget{Ratio: 0.5}, MaxRetryAfter: -1},
		map[string]httpretry.Policy{"a.test": {NewIdempotencyKey: httpretry.RandomKey}, "b.test": {}})
	require.NoError(t, err)
	require.NoError(t, validate(t, schema, text))
	files, err := filepath.Glob("../testdata/valid/*.json")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		parsed, err := policyfile.Parse(text)
		require.NoError(t, err, file)
		written, err := json.Marshal(parsed)
		require.NoError(t, err)
		assert.NoError(t, validate(t, schema, written), "%s: %s", file, written)
	}
}
