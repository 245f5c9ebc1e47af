package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The program is not a test, although it gets its clock from package testing.
func TestProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "retrylab")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for args, want := range map[string]string{
		"outage -budgets=none -length=40s": "\nnone  ",
		"layers -users=10 -test.v":         "retrylab layers: flag provided but not defined: -test.v",
	} {
		out, err := exec.Command(program, strings.Fields(args)...).CombinedOutput()
		assert.Equal(t, strings.Contains(args, "-test.v"), err != nil, args)
		assert.Contains(t, string(out), want)
		assert.NotContains(t, string(out), "PASS")
	}
}
