package recipes_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPage checks that the page links to each of its headings but the first.
// The repository's tests check its links, and that all of its code is here.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../recipes.md")
	require.NoError(t, err)
	headings := regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(text), -1)
	assert.Greater(t, len(headings), 10)
	for _, heading := range headings {
		anchor := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		assert.Contains(t, string(text), "](#"+strings.ReplaceAll(anchor, " ", "-")+")")
	}
}
