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

	"github.com/seed421102f4/httpretry/policyfile"
)

// validate returns the error of the schema for a file.
func validate(t *testing.T, schema *jsonschema.Schema, text []byte) error {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err, "%s", text)
	return schema.Validate(value)
}

// The schema and the parser agree on each file, except for the mistakes that no
// schema can describe. Compile checks the schema itself by the schema of schemas.
func TestSchemaAgreesWithParser(t *testing.T) {
	schema, err := jsonschema.NewCompiler().Compile("../schema.json")
	require.NoError(t, err)
	text, err := os.ReadFile("../testdata/files.json")
	require.NoError(t, err)
	var files map[string][]json.RawMessage
	require.NoError(t, json.Unmarshal(text, &files))
	for _, c := range []struct {
		kind             string
		schemaOK, parsed bool
	}{
		{"valid", true, true}, {"invalid", false, false}, {"beyond_schema", true, false},
	} {
		require.NotEmpty(t, files[c.kind])
		for _, file := range files[c.kind] {
			_, err = policyfile.Parse(file)
			assert.Equal(t, c.parsed, err == nil, "the parser: %s: %v", file, err)
			err = validate(t, schema, file)
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
