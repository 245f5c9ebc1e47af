package main

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The program is not a test, although it gets its clock from package testing.
func TestProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "retrylab")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, c := range []struct {
		args           []string
		stdout, stderr string
		status         int
	}{
		{[]string{"outage", "-budgets=unlimited,none", "-length=40s"}, "\nunlimited  ", "", 0},
		{[]string{"layers", "-users=10", "-test.v"}, "", "retrylab layers: flag provided but not defined: -test.v", 2},
		{[]string{"-h"}, "retrylab outage", "", 0},
	} {
		var stdout, stderr bytes.Buffer
		cmd := exec.Command(program, c.args...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		status := 0
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			status = exit.ExitCode()
		}
		assert.Equal(t, c.status, status, "%v: %s", c.args, stderr.String())
		assert.Contains(t, stdout.String(), c.stdout)
		assert.Contains(t, stderr.String(), c.stderr)
		assert.NotContains(t, stdout.String(), "PASS")
	}
}
