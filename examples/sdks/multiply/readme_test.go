package multiply

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// link is a link in Markdown: its text and its target.
var link = regexp.MustCompile(`\[([^]]*)\]\(([^)]*)\)`)

// TestReadme checks that the table in the README has these rows in this order,
// with these figures, and the versions that go.mod requires.
func TestReadme(t *testing.T) {
	want, requirements := rows(), requirements(t)
	table := readTable(t, "| SDK | plug in | turn off | off | on | idle |")
	require.Len(t, table, len(want))
	for i, cells := range table {
		r := want[i]
		require.Len(t, cells, 6, r.sdk)
		name := link.ReplaceAllString(cells[0], "$1")
		assert.True(t, strings.HasPrefix(name, r.sdk), "row %d is of %q, want %q", i, name, r.sdk)
		assert.Equal(t, r.figures(), cells[3:], r.sdk)
		if found := link.FindStringSubmatch(cells[0]); found != nil {
			assert.FileExists(t, filepath.Join("..", found[2], "main_test.go"), r.sdk)
		}
		version := regexp.MustCompile(` (v\d+[.\d]*)`).FindStringSubmatch(r.sdk)
		if version != nil {
			assert.True(t, strings.HasPrefix(requirements[r.module]+".", version[1]+"."),
				"%s: go.mod requires %s", r.sdk, requirements[r.module])
		}
		assert.NotEmpty(t, requirements[r.module], r.module)
	}
}

// readTable returns the cells of the table with this first line.
func readTable(t *testing.T, header string) (table [][]string) {
	t.Helper()
	content, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(content), header+"\n")
	require.True(t, found, "the README has no table %s", header)
	for line := range strings.Lines(rest) {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "| ")
		if ok {
			table = append(table, strings.Split(strings.TrimSuffix(line, " |"), " | "))
		} else if len(table) > 0 {
			break
		}
	}
	return table
}

// requirements returns the versions in go.mod by module.
func requirements(t *testing.T) map[string]string {
	t.Helper()
	content, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	versions := map[string]string{}
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) >= 2 {
			versions[fields[0]] = fields[1]
		}
	}
	return versions
}
