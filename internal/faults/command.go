package faults

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Command returns a command that runs a program, such as the test's own, on the
// system that the test is built for. If an emulator runs the test, the kernel
// cannot start such a program, so the emulator has to run that, too. The
// variable TEST_EMULATOR names it.
func Command(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	words := append(strings.Fields(os.Getenv("TEST_EMULATOR")), program)
	return exec.CommandContext(t.Context(), words[0], append(words[1:], args...)...)
}
