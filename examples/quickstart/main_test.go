package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

// matches counts the lines, or parts of lines, that match a pattern.
func matches(text, pattern string) int {
	return len(regexp.MustCompile(`(?m)`+pattern).FindAllString(text, -1))
}

func TestDemoDoesWhatItsTitlesSay(t *testing.T) {
	var stdout strings.Builder
	err := run(&stdout)
	out := stdout.String()
	require.NoError(t, err, out)

	assert.Equal(t, 13, matches(out, `^\d+\. `), "scenarios")
	assert.Equal(t, 13, matches(out, `^  ok  `), "verdicts")
	for _, line := range []string{
		`1  GET /busy +503 Service Unavailable +retry in 150ms$`,
		`1  GET /maintenance +503, asks to wait 250ms +retry in `,
		`1  GET /throttled +429, asks to wait 1s +retry in [12]`,
		`1  GET /reset +connection broken +retry in 150ms$`,
		`1  GET /slow +timeout +retry in 150ms$`,
		`1  POST /charge +503 Service Unavailable +stop: not_idempotent$`,
		`server saw 2 requests, made 1 charge$`,
		`1  POST /refused +connection failed +retry in 150ms$`,
		`without a budget +40 +120 +80$`,
		`with the default budget +40 +4[5-9] +[5-9]$`,
		`Send: .* +40 +[0-9]+ +40 +0$`,
		`Wait: .* +40 +0 +40 +0$`,
		`Fail: .* +40 +0 +0 +40$`,
		`^  success +on attempt 1: [0-9]+, on attempt 2: [0-9]+$`,
		`^  attempts_exhausted +on attempt 3: 40$`,
		`^  retries_disabled +on attempt 1: 3$`,
		`^  budget_exhausted +on attempt 1: 3[0-9], on attempt 2: [5-9]$`,
		`^  host_cooling_down +not sent: 40$`,
		`^  not_idempotent +on attempt 1: 1\n    the server may have processed it;`,
	} {
		assert.NotZero(t, matches(out, line), "no line matches %s in\n%s", line, out)
	}
}

// A scenario with another result than expected fails the demo.
func TestScenarioThatDoesNotDoWhatItSaysFails(t *testing.T) {
	var stdout strings.Builder
	d := newDemo(&stdout)
	defer d.server.Close()
	s := scenarios()[0]
	s.want.reason = httpretry.ReasonPermanent
	d.verdict(d.run(s), "")
	assert.Equal(t, 1, d.failed)
	assert.Contains(t, stdout.String(), "FAIL  caller got 200 after 2 attempts; "+
		"server saw 2 requests (success); expected: caller got 200 after 2 attempts; "+
		"server saw 2 requests (permanent)\n")
}
