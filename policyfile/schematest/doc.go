// Package schematest checks the JSON Schema of package policyfile with a
// validator, which the core does not require.
package schematest
