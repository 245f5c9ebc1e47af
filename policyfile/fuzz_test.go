package policyfile_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policyfile"
)

// FuzzParse reads any file. Parse returns either a File that New accepts and
// whose fields read back equal, or errors with positions within the file. With
// IgnoreUnknown, unknown fields are warnings at the same positions.
func FuzzParse(f *testing.F) {
	for _, text := range slices.Concat(files(f, "valid"), files(f, "invalid"), []string{
		full, `{}`, `null`, `{"default": {"maxAttempts": 1, "maxAttempts": 2}}`,
		`{"default": {"budget": {"name": "\ud800"}}}`,
		`{"policies": {"": {}, "*": {}, "a.test": {"preset": "github"}, "A.test": {}}}`, strings.Repeat(`{"a":`, 30),
		`{"default": {"replayBuffer": -0.0, "maxRetryAfter": "-1.5h3µs", "backoff": "Spread Of=Linear Base=1s"}}`,
		"{\"a\n\":\n[[[{\"x\": [1, 2.5e9, \"\"]}]]]}",
		`{"default": {"final": [503, 500], "hedge": []}, "policies": {"a.test": {"transient": [503, 202], "unprocessed": []}}}`,
		`{"version": 1, "a": {"version": 2}, "default": {"budget": {"cost": 1}, "preset": "openai", "final": [409, 409.0]}}`,
	}) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		file, err := policyfile.Parse([]byte(text))
		lenient := policyfile.Loader{IgnoreUnknown: true}
		if other, lenientErr := lenient.Parse([]byte(text)); lenientErr == nil {
			unknown := slices.DeleteFunc(other.Warnings(), func(w *policyfile.Error) bool {
				return !strings.HasPrefix(w.Problem, "unknown field")
			})
			ignored := strings.ReplaceAll(
				lines(unknown), "unknown field, which is ignored: ", "unknown field: ")
			if err == nil {
				require.Empty(t, ignored)
			} else if len(other.Warnings()) <= 100 {
				require.EqualError(t, err, ignored)
			}
		} else {
			require.Error(t, err)
		}
		if err == nil {
			_, err := httpretry.New(httpretry.Config{
				Policy: file.Policy(), Policies: file.Policies(), AttemptHeader: "-",
			})
			require.NoError(t, err)
			assertShown(t, file)
			return
		}
		require.Nil(t, file)
		last := policyfile.Error{}
		lines := strings.Split(text, "\n")
		problems := []error{err}
		if all, ok := err.(interface{ Unwrap() []error }); ok {
			problems = all.Unwrap()
		}
		for _, err := range problems {
			e, ok := errors.AsType[*policyfile.Error](err)
			if !ok {
				require.Regexp(t, `^and \d+ more problems$`, err.Error())
				continue
			}
			require.NotContains(t, err.Error(), "\n")
			require.LessOrEqual(t, len(err.Error()), 2000)
			follows := e.Line > last.Line || e.Line == last.Line && e.Column >= last.Column
			require.True(t, follows, "%v after %v", e, last)
			require.LessOrEqual(t, e.Line, len(lines))
			require.LessOrEqual(t, e.Column, len(lines[e.Line-1])+1)
			last = *e
		}
	})
}

// The cost of a file that is not valid is in proportion to its size. Allocations
// stand for time. Parse makes patterns of the keys of policies.
func TestCostOfLargeFiles(t *testing.T) {
	const fields, policies = `{"default": {%s"z": 0}}`, `{"policies": {%s"": {}}}`
	for _, tt := range []struct{ name, file, part string }{
		{"unknown fields", fields, `"a#": 0,`},
		{"repeated fields", fields, `"maxAttempts": "x",`},
		{"long names", fields, `"` + strings.Repeat("k", 1000) + `": 0,`},
		{"nested", fields, `"a#": {"a": {"a": {"a": [[[[]]]]}}},`},
		{"arrays", fields, `"a#": [1, "x", [2], {}],`},
		{"wrong statuses", fields, `"final": [503, 503, "a", [500]],`},
		{"wrong strategies", fields, `"backoff": "` + strings.Repeat("Capped Of=", 30) + `",`},
		{"hosts", policies, `"a#.test": {},`},
		{"paths", policies, `"a.test/#": {"maxAttempts": 4},`},
		{"wrong keys", policies, `"a #": {},`},
		{"the same host", policies, `"a.test:0#": {"budget": {"burst": 1}},`},
		{"wrong values", policies, `"a#.test": {"maxAttempts": "x"},`},
		{"same names", policies, `"a#.test": {"budget": {"name": "b", "burst": #}},`},
		{"conflicts", policies, `"GET a.test/{x}/b#": {}, "a.test/c#/{y}": {},`},
	} {
		cost := func(size int) float64 {
			var b strings.Builder
			for i := 1; b.Len() < size; i++ {
				b.WriteString(strings.ReplaceAll(tt.part, "#", strconv.Itoa(i)))
			}
			text := fmt.Sprintf(tt.file, b.String())
			return testing.AllocsPerRun(1, func() {
				_, err := policyfile.Parse([]byte(text))
				assert.Error(t, err)
			})
		}
		small, large := cost(4_000), cost(40_000)
		assert.Less(t, large, 12*small+2000, tt.name)
	}
}
