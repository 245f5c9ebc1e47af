package fielderr_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/fielderr"
)

func TestAt(t *testing.T) {
	for _, at := range []func(string, error) error{
		fielderr.At, fielderr.AtField, fielderr.AtKey,
	} {
		require.NoError(t, at("Config", nil))
	}
	one, two := errors.New("A: 1: want 2"), errors.New("B: 3: want 4")
	const both = "Config.Policy: A: 1: want 2\nConfig.Policy: B: 3: want 4"
	assert.EqualError(t, fielderr.At("Config.Policy", errors.Join(one, two)), both)
	assert.EqualError(t, fielderr.At("Config.Policy", fielderr.Join(one, nil, two)), both)
	assert.EqualError(t, fielderr.At("Config.Policy", errors.New("")), "Config.Policy: ")
	assert.EqualError(t, fielderr.At("Config.Policy", fielderr.New(-1, "0")),
		"Config.Policy: -1: want 0")
}

// Paths can be put before errors that have some already.
func TestAtNests(t *testing.T) {
	inner := errors.Join(fielderr.At("A", errors.New("1")), fielderr.At("B", errors.New("2\n3")))
	assert.EqualError(t, fielderr.At("Outer", inner), "Outer: A: 1\nOuter: B: 2\nOuter: B: 3")
	assert.EqualError(t, fielderr.AtField("A", fielderr.AtKey("b\n", io.EOF)), `A["b\n"]: EOF`)
}

// Without a path, there is no colon before the value.
func TestWithoutPath(t *testing.T) {
	err := fielderr.New(-1, "0")
	assert.EqualError(t, err, "-1: want 0")
	assert.EqualError(t, fielderr.Join(err, io.EOF), "-1: want 0\nEOF")
	assert.Nil(t, fielderr.Problems(nil))
	assert.NoError(t, fielderr.Join())
	assert.NoError(t, fielderr.Join(nil, nil))
}

func TestAtWraps(t *testing.T) {
	path := &fs.PathError{Op: "open", Path: "x", Err: io.EOF}
	for _, joined := range []error{
		errors.Join(errors.New("other"), path), fielderr.Join(errors.New("other"), path),
	} {
		err := fielderr.At("Config", joined)
		require.ErrorIs(t, err, io.EOF)
		var found *fs.PathError
		require.ErrorAs(t, err, &found)
		assert.Same(t, path, found)
	}
}

// The text of an error has the text of each of its problems on a line of its
// own.
func TestProblems(t *testing.T) {
	budget := fielderr.At("HostBudget", fielderr.AtField("Ratio", fielderr.New(-1.5, "a number")))
	foreign := fmt.Errorf("two: %w and %w", io.EOF, budget)
	policy := fielderr.Join(
		fielderr.AtField("MaxElapsed", fielderr.New("-3s", "at least 1ms")),
		fielderr.AtField("Budget", budget),
		fielderr.AtField("Backoff", foreign),
	)
	err := fielderr.At("httpretry", fielderr.Join(
		fielderr.At("Config.Policy", policy),
		fielderr.At("Config", fielderr.AtField("Policies",
			fielderr.AtKey("a.test", fielderr.Join(io.EOF, policy)))),
	))
	got := fielderr.Problems(err)
	const two = "two: EOF and HostBudget.Ratio: -1.5: want a number"
	const a = `httpretry: Config.Policies["a.test"]`
	assert.Equal(t, []fielderr.Problem{
		{"httpretry: Config.Policy.MaxElapsed", "", "MaxElapsed", "-3s", "at least 1ms"},
		{"httpretry: Config.Policy.Budget: HostBudget.Ratio", "", "Budget", "-1.5", "a number"},
		{"httpretry: Config.Policy.Backoff", "", "Backoff", two, ""},
		{a, "a.test", "Policies", "EOF", ""},
		{a + ".MaxElapsed", "a.test", "Policies", "-3s", "at least 1ms"},
		{a + ".Budget: HostBudget.Ratio", "a.test", "Policies", "-1.5", "a number"},
		{a + ".Backoff", "a.test", "Policies", two, ""},
	}, got)
	var lines strings.Builder
	for _, p := range got {
		lines.WriteString("\n" + p.String())
	}
	assert.Equal(t, lines.String(), "\n"+err.Error())
	assert.Equal(t, "-3s: want at least 1ms", got[0].Text())
	assert.Equal(t, []fielderr.Problem{{Value: "EOF"}}, fielderr.Problems(io.EOF))
}
