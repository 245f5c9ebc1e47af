//go:build !windows && !plan9

package faults

import "syscall"

// The system's errors for a connection that was reset, for one that was
// refused, and for a write to a connection that has ended. Tests use these,
// because Windows has numbers of its own, and no system call there returns
// syscall.ECONNRESET.
const (
	ConnReset   = syscall.ECONNRESET
	ConnRefused = syscall.ECONNREFUSED
	BrokenPipe  = syscall.EPIPE
)
