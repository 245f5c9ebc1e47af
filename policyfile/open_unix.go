//go:build unix

package policyfile

import (
	"os"
	"syscall"
)

// openFlags do not wait until a named pipe has a writer.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK
