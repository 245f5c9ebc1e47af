package main

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

// httpretry is right in each row that does not take long, and README.md has its
// cell.
func TestHTTPRetry(t *testing.T) {
	table, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, r := range rows() {
		t.Run(r.name, func(t *testing.T) {
			if r.slow {
				t.Skip("takes long: go run ./behavior")
			}
			if !r.busy && !r.serial {
				t.Parallel()
			}
			c, err := runCell(r, peers.All()[0])
			require.NoError(t, err)
			assert.NotEqual(t, wrong, c.verdict, "%s; want %s", c.text, r.right)
			if !r.varies {
				documented := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(r.name+" | "+r.right+" | "+c.text) +
					`( \(\d+\))? \|`)
				assert.True(t, documented.Match(table), "README.md does not have %q for it", c.text)
			}
		})
	}
}

// Each note below the table holds. With its option, the peer is not wrong, and
// httpretry is right in the rows that are not judged.
func TestOptions(t *testing.T) {
	for _, r := range rows() {
		for name, o := range r.options {
			t.Run(r.name+"/"+name, func(t *testing.T) {
				if r.slow && testing.Short() {
					t.Skip("takes long")
				}
				// A slow row waits more than it works.
				if r.slow || !r.busy && !r.serial {
					t.Parallel()
				}
				c, err := runCell(r, peers.Peer{Name: name, New: o.client})
				require.NoError(t, err)
				t.Log(c)
				assert.NotEqual(t, wrong, c.verdict, "%s; want %s", c.text, r.right)
				if name == "httpretry" {
					assert.Equal(t, right, c.verdict, c.text)
				}
			})
		}
	}
}

// A row in which httpretry is wrong fails the command, and the table marks it.
func TestWrong(t *testing.T) {
	bad := row{name: "name", right: "good", run: func(*trial) cell { return judge(false, "bad") }}
	lines, err := runRow(bad, peers.All())
	require.NoError(t, err)
	err = wrongCells([]row{bad}, [][]cell{lines})
	assert.EqualError(t, err, "httpretry is wrong: name: bad; want good")

	var out bytes.Buffer
	writeTable(&out, peers.All()[:1], []row{bad}, [][]cell{lines[:1]})
	assert.Contains(t, out.String(), "\n| name | good | ✗ bad |\n")

	assert.ErrorContains(t, behavior(io.Discard, io.Discard, "no such row", true), "no row matches")
	assert.ErrorContains(t, behavior(io.Discard, io.Discard, "(", true), "-run: ")
}
