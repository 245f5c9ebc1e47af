//go:build unix

package main

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// hangUp sends SIGHUP to this process, in which the program runs. It reports
// whether the system has that signal.
func hangUp(t *testing.T) bool {
	t.Helper()
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	return true
}
