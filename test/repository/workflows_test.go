package repository

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWorkflows checks that the workflows have least rights, and that an action
// is the same commit in all of them. CI checks their syntax.
func TestWorkflows(t *testing.T) {
	commits := map[string]string{}
	for name, text := range workflows(t) {
		assert.Empty(t, workflowProblems(text), name)
		for _, uses := range actionUsed.FindAllStringSubmatch(text, -1) {
			if commit, ok := commits[uses[1]]; ok {
				assert.Equal(t, commit, uses[2], "%s: %s differs", name, uses[1])
			}
			commits[uses[1]] = uses[2]
		}
	}
	assert.Equal(t, []string{"actions/checkout", "actions/setup-go"},
		slices.Sorted(maps.Keys(commits)))
}

// TestWorkflowProblems checks that workflowProblems finds each problem.
func TestWorkflowProblems(t *testing.T) {
	const uses = "uses: actions/checkout@0123456789012345678901234567890123456789 # v1.2.3"
	good := strings.Join([]string{
		"on: push", "permissions:", "  contents: read", "jobs:", "  a:", "    runs-on: b",
		"    timeout-minutes: 5", "    steps:", "      - " + uses, "        with:",
		"          persist-credentials: false", "      - run: c ${{ matrix.go }}", "",
	}, "\n")
	require.Empty(t, workflowProblems(good))
	for change, want := range map[[2]string]string{
		{"9 # v1.2.3", " # v1.2.3"}:                     "not pinned",
		{" # v1.2.3", " # v1"}:                          "not pinned",
		{" # v1.2.3", ""}:                               "not pinned",
		{"contents: read", "contents: write"}:           "rights",
		{"permissions:\n  contents: read\n", ""}:        "rights",
		{"    steps", "    permissions: {}\n    steps"}: "rights",
		{"on: push", "on: pull_request_target"}:         "pull_request_target",
		{"matrix.go", "secrets.TOKEN"}:                  "secrets.TOKEN",
		{"matrix.go", "github.head_ref"}:                "github.head_ref",
		{"credentials: false", "credentials: true"}:     "credentials",
		{"    timeout-minutes: 5\n", ""}:                "time limit",
	} {
		changed := strings.Replace(good, change[0], change[1], 1)
		require.NotEqual(t, good, changed)
		problems := workflowProblems(changed)
		if assert.Len(t, problems, 1, "%q", change) {
			assert.Contains(t, problems[0], want)
		}
	}
}

var (
	actionUsed = regexp.MustCompile(
		`(?m)^ +(?:- )?uses: ([\w./-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)$`)
	expression = regexp.MustCompile(`\$\{\{ *(.*?) *\}\}`)
)

// workflowProblems returns the reasons why a workflow has more rights than it
// needs, or runs code that may change.
func workflowProblems(text string) (problems []string) {
	if strings.Count(text, "uses:") != len(actionUsed.FindAllString(text, -1)) {
		problems = append(problems, "an action is not pinned by its commit, with its version")
	}
	if strings.Count(text, "permissions:") != 1 ||
		!strings.Contains(text, "\npermissions:\n  contents: read\n") ||
		strings.Contains(text, ": write") {
		problems = append(problems, "the rights are not contents: read")
	}
	if strings.Contains(text, "pull_request_target") {
		problems = append(problems, "pull_request_target gives rights to code of forks")
	}
	// Others may have text that a user has written, or secrets.
	// A branch may have any name, which must not be in a script.
	group := "  group: ${{ github.workflow }}-${{ github.ref }}\n"
	known := regexp.MustCompile(`^matrix\.\w+$`)
	rest := strings.Replace(text, group, "", 1)
	for _, found := range expression.FindAllStringSubmatch(rest, -1) {
		if !known.MatchString(found[1]) {
			problems = append(problems, fmt.Sprintf("the expression %s is not known", found[1]))
		}
	}
	checkouts := strings.Count(text, "actions/checkout@")
	if checkouts != strings.Count(text, "persist-credentials: false\n") {
		problems = append(problems, "a checkout leaves its credentials")
	}
	if strings.Count(text, "runs-on:") != strings.Count(text, "timeout-minutes:") {
		problems = append(problems, "a job has no time limit")
	}
	return problems
}

// TestGoVersions checks that the workflows and their image, go.mod and .ci/full
// name the same versions of Go.
func TestGoVersions(t *testing.T) {
	oldest := regexp.MustCompile(`(?m)^go (\d+\.\d+)(\.\d+)$`).
		FindStringSubmatch(document(t, "go.mod"))
	require.NotNil(t, oldest)
	newest := regexp.MustCompile(`(?m)^go_versions="go\$\(.*\) go(\d+\.\d+\.\d+)"$`).
		FindStringSubmatch(document(t, ".ci/full"))
	require.NotNil(t, newest)
	all := workflows(t)
	assert.Contains(t, all["ci.yml"], fmt.Sprintf("\n        go: [%s%s, %s]\n",
		oldest[1], oldest[2], newest[1]))
	version := regexp.MustCompile(`(?m)^ +go-version: (.*)$`)
	for name, want := range map[string][]string{
		"ci.yml":      {oldest[1] + ".x", "${{ matrix.go }}"},
		"nightly.yml": {"stable"},
	} {
		var got []string
		for _, found := range version.FindAllStringSubmatch(all[name], -1) {
			got = append(got, found[1])
		}
		assert.Equal(t, want, got, name)
	}
	assert.Contains(t, all["nightly.yml"],
		fmt.Sprintf("\n    container: golang:%s-bookworm\n", oldest[1]))
}

// workflows returns the texts of the workflows by the names of their files.
func workflows(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../../.github/workflows/*")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	texts := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		texts[filepath.Base(path)] = string(text)
	}
	return texts
}

// TestDependabot checks that Dependabot knows all modules.
func TestDependabot(t *testing.T) {
	modules := []string{}
	find := func(path string, entry os.DirEntry, err error) error {
		// git may change its folder meanwhile.
		if filepath.Base(path) == ".git" && entry.IsDir() {
			return filepath.SkipDir
		}
		if err == nil && filepath.Base(path) == "go.mod" {
			folder := filepath.ToSlash(filepath.Dir(path))
			modules = append(modules, "/"+strings.TrimPrefix(folder[len("../.."):], "/"))
		}
		return err
	}
	require.NoError(t, filepath.WalkDir("../..", find))
	slices.Sort(modules)
	block := regexp.MustCompile(`    directories:\n((?:      - .*\n)+)`).
		FindStringSubmatch(document(t, ".github/dependabot.yml"))
	require.NotNil(t, block)
	listed := strings.Fields(strings.ReplaceAll(block[1], "- ", ""))
	assert.Equal(t, modules, listed)
}

// TestIssueForms checks that each form for an issue asks for the versions and a
// Policy, that the one for bugs asks for events, and that vulnerabilities are
// reported elsewhere.
func TestIssueForms(t *testing.T) {
	for _, name := range []string{"bug", "request"} {
		form := document(t, ".github/ISSUE_TEMPLATE/"+name+".yml")
		ids := []string{"versions", "policy"}
		if name == "bug" {
			ids = append(ids, "events")
			assert.Contains(t, form, "httpretry.LogEvents(")
		}
		for _, id := range ids {
			assert.Contains(t, form, "    id: "+id+"\n", name)
		}
		fields := strings.Count(form, "\n    id: ")
		assert.Equal(t, fields, strings.Count(form, "      required: true\n"), name)
		assert.Equal(t, fields, strings.Count(form, "      label: "), name)
	}
	assert.Contains(t, document(t, ".github/ISSUE_TEMPLATE/config.yml"),
		"url: https://"+module+"/security/advisories/new\n")
	lines := strings.Count(document(t, ".github/pull_request_template.md"), "\n")
	assert.Equal(t, 5, lines)
}
