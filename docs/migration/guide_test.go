package migration_test

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

// oldPolicy sends as many requests as the other libraries do.
func oldPolicy() httpretry.Policy {
	return httpretry.Policy{
		MaxAttempts:   4,                                        // the first one included
		Idempotent:    func(*http.Request) bool { return true }, // a POST may be processed twice
		Budget:        httpretry.Unlimited{},                    // a host that is down gets each retry
		MaxRetryAfter: -1,                                       // a server may ask for a wait of a day
		ReplayBuffer:  64 << 20,                                 // a body of that size is kept in memory
	}
}

// TestGuidePrograms checks that CI compiles and runs the code in the guide.
func TestGuidePrograms(t *testing.T) {
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(guide(t), -1)
	require.NotEmpty(t, blocks)
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	var sources strings.Builder
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		sources.WriteString(withoutSpace(string(source)))
	}
	for _, block := range blocks {
		assert.True(t, strings.Contains(sources.String(), withoutSpace(block[1])),
			"no file in docs/migration contains this code of migration.md:\n%s", block[1])
	}
}

// withoutSpace returns code without the indentation and alignment that depend on
// the lines around.
func withoutSpace(code string) string { return " " + strings.Join(strings.Fields(code), " ") + " " }

// TestGuideVersions checks that the guide names the versions that CI runs.
func TestGuideVersions(t *testing.T) {
	text, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	direct := regexp.MustCompile(`(?m)^\t(\S+) (v\S+)$`).FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, direct)
	for _, requirement := range direct {
		path, version := requirement[1], requirement[2]
		if strings.Contains(path, "testify") || strings.Contains(path, "httpretry") {
			continue
		}
		assert.Contains(t, guide(t), "`"+path+"` "+version)
	}
}

func guide(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../migration.md")
	require.NoError(t, err)
	return string(text)
}
