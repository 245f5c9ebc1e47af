package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func someTables(cell string) []table {
	var all []table
	for _, e := range entries() {
		all = append(all, table{title: e.title, head: []string{"client", "time"}, rows: [][]string{{"httpretry", cell}}})
	}
	return all
}

// A whole run replaces all that follows the title of the results.
func TestUpdateAll(t *testing.T) {
	r := results{conditions: "today", versions: []string{"x 1"}, tables: someTables("2 ns")}
	got, err := r.replaceIn("# Title\n\n## Results\n\nold\n\n### Old\n\n| old |\n")
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(got, "# Title\n\n## Results\n\nMeasured today."))
	assert.NotContains(t, got, "old")
	assert.NotContains(t, got, "itself")
	assert.Equal(t, len(entries()), strings.Count(got, "| httpretry | 2 ns |\n"))
	again, err := r.replaceIn(got)
	require.NoError(t, err)
	assert.Equal(t, got, again)
}

// A run of some tables leaves the others as they are, and adds a missing one at
// its place.
func TestUpdateSome(t *testing.T) {
	tables := someTables("1 ns")
	whole := results{conditions: "yesterday", versions: []string{"x 1"}, tables: tables}
	text, err := whole.replaceIn("## Results\n\n")
	require.NoError(t, err)
	without := strings.Replace(text, joinTables(tables[3:4], ""), "", 1)
	require.NotEqual(t, text, without)

	some := results{conditions: "today", versions: []string{"x 2"}, tables: someTables("2 ns")[3:5]}
	for _, before := range []string{text, without} {
		got, err := some.replaceIn(before)
		require.NoError(t, err)
		assert.Contains(t, got, "Measured yesterday.")
		assert.NotContains(t, got, "x 2")
		assert.Equal(t, 2, strings.Count(got, "\n\nMeasured by itself today.\n\n"))
		want := text
		for i := 3; i < 5; i++ {
			want = strings.Replace(want, joinTables(tables[i:i+1], ""),
				joinTables(some.tables[i-3:i-2], "Measured by itself today."), 1)
		}
		assert.Equal(t, want, got)
	}
}

func TestUpdateWithoutResults(t *testing.T) {
	_, err := new(results).replaceIn("# Title\n")
	assert.ErrorContains(t, err, `has no line "## Results"`)
}

// The README has all tables, in the order in which they are printed.
func TestReadmeHasAllTables(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	var want, got []string
	for _, e := range entries() {
		want = append(want, e.title)
	}
	for line := range strings.Lines(string(text)) {
		if title, found := strings.CutPrefix(line, "### "); found {
			got = append(got, strings.TrimSpace(title))
		}
	}
	assert.Equal(t, want, got)
}

func TestWrap(t *testing.T) {
	assert.Equal(t, "one two", wrap(" one\ntwo "))
	a, b := strings.Repeat("a", 60), strings.Repeat("ä", 59)
	assert.Equal(t, a+" "+b, wrap(a+" "+b))
	assert.Equal(t, a+"\n"+b+"ä c", wrap(a+" "+b+"ä c"))
	assert.Contains(t, conditions(7, "of a kind"), "with seed 7, on ")
	assert.True(t, strings.HasSuffix(conditions(7, "of a kind"), " processors of a kind"))
	assert.True(t, strings.HasSuffix(conditions(7, ""), " processors"))
}
