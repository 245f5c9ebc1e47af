package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExpectedTextIsValid(t *testing.T) {
	list, err := parseExpectations(expectedText)
	require.NoError(t, err)
	assert.NotEmpty(t, list["zero"])
}

func TestParseExpectations(t *testing.T) {
	list, err := parseExpectations("# comment\n\nfails zero,timeout net/http TestA/b # counts\n")
	require.NoError(t, err)
	want := expectation{kind: "fails", reason: "counts"}
	assert.Equal(t, want, list["zero"][test{"net/http", "TestA/b"}])
	assert.Equal(t, want, list["timeout"][test{"net/http", "TestA/b"}])
	assert.Empty(t, list["watched"])

	for _, line := range []string{
		"fails zero net/http TestA",
		"fails zero net/http TestA # ",
		"passes zero net/http TestA # reason",
		"fails sometimes net/http TestA # reason",
	} {
		_, err := parseExpectations("\n" + line)
		assert.ErrorContains(t, err, "expected.txt:2: ", line)
	}
}

func TestFailures(t *testing.T) {
	results := map[test]result{
		{"p", "TestA"}:     {action: "fail"},
		{"p", "TestA/x"}:   {action: "fail"},
		{"p", "TestA/x/1"}: {action: "fail"},
		{"p", "TestA/x/2"}: {action: "pass"},
		{"p", "TestB"}:     {action: "fail"},
		{"q", "TestA"}:     {action: "fail"},
		{"q", "TestC"}:     {action: "skip"},
	}
	assert.Equal(t, []test{{"p", "TestA/x/1"}, {"p", "TestB"}, {"q", "TestA"}}, failures(results))
}

func TestParseEvents(t *testing.T) {
	tests := []struct {
		name     string
		text     string
		actions  map[string]string
		culprits []string
	}{
		{
			name: "all end",
			text: `{"Action":"run","Test":"TestA"}{"Action":"pass","Test":"TestA"}` +
				`{"Action":"run","Test":"TestB"}{"Action":"fail","Test":"TestB"}{"Action":"fail"}`,
			actions: map[string]string{"TestA": "pass", "TestB": "fail"},
		},
		{
			name: "one hangs, one waits",
			text: `{"Action":"run","Test":"TestA"}{"Action":"pause","Test":"TestA"}` +
				`{"Action":"run","Test":"TestB"}{"Action":"run","Test":"TestB/h1"}{"Action":"fail"}`,
			actions:  map[string]string{"TestA": "pause", "TestB": "run", "TestB/h1": "run", exitStatus: "fail"},
			culprits: []string{"TestB/h1"},
		},
		{
			name: "one panics",
			text: `{"Action":"run","Test":"TestA"}{"Action":"output","Test":"TestA","Output":"panic: no\n"}` +
				`{"Action":"fail","Test":"TestA"}{"Action":"fail"}`,
			actions:  map[string]string{"TestA": "fail"},
			culprits: []string{"TestA"},
		},
		{
			name: "one hangs after another one passed",
			text: `{"Action":"run","Test":"TestA"}{"Action":"run","Test":"TestB"}{"Action":"output","Test":"TestB","Output":` +
				`"--- PASS: TestB (0s)\npanic: test timed out after 2m0s\n\trunning tests:\n\t\tTestA (9s)\n\n"}` +
				`{"Action":"fail","Test":"TestB"}{"Action":"fail"}`,
			actions:  map[string]string{"TestA": "run", "TestB": "fail"},
			culprits: []string{"TestA"},
		},
		{
			name:    "TestMain fails",
			text:    `{"Action":"run","Test":"TestA"}{"Action":"pass","Test":"TestA"}{"Action":"fail"}`,
			actions: map[string]string{"TestA": "pass", exitStatus: "fail"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ended, err := parseEvents([]byte(tt.text))
			require.NoError(t, err)
			actions := make(map[string]string)
			for name, e := range ended {
				actions[name] = e.action
			}
			assert.Equal(t, tt.actions, actions)
			assert.Equal(t, tt.culprits, culprits(ended))
		})
	}
}
