//go:build !windows && !plan9

package faults

import "syscall"

// What the system calls a connection that was reset, one that was refused, and
// one that is written to after its end. Tests use these, since Windows has
// numbers of its own: there, syscall.ECONNRESET is a value that no system call
// returns.
const (
	ConnReset   = syscall.ECONNRESET
	ConnRefused = syscall.ECONNREFUSED
	BrokenPipe  = syscall.EPIPE
)
