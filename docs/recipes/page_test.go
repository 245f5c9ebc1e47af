package recipes_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPage checks that each link within the page has its heading, that each
// heading but the first has its link, and that the page shows code of each file
// here. The repository's tests check that all code of the page is in these
// files.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../recipes.md")
	require.NoError(t, err)
	page := string(text)
	code := regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	prose := code.ReplaceAllString(page, "")

	var headings, links []string
	for _, heading := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(prose, -1) {
		anchor := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		headings = append(headings, strings.ReplaceAll(anchor, " ", "-"))
	}
	for _, link := range regexp.MustCompile(`\]\(#([^)]*)\)`).FindAllStringSubmatch(prose, -1) {
		links = append(links, link[1])
	}
	assert.Greater(t, len(headings), 10)
	assert.Subset(t, headings, links)
	assert.Subset(t, links, headings)

	var shown strings.Builder
	for _, block := range code.FindAllStringSubmatch(page, -1) {
		shown.WriteString(block[1])
	}
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	functions := regexp.MustCompile(`(?m)^func .*$`)
	for _, file := range files {
		if file == "page_test.go" || file == "helpers_test.go" {
			continue
		}
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		found := false
		for _, function := range functions.FindAllString(string(source), -1) {
			found = found || strings.Contains(shown.String(), function)
		}
		assert.True(t, found, "recipes.md shows no function of %s", file)
	}
}
