//go:build !windows && !plan9

// Package errno has the errors with which each system reports a connection that
// was reset, one that was refused, and a write to one that has ended.
// Tests and package retrytest return these errors as net/http does. On Windows,
// their numbers are not those of package syscall, and no system call there
// returns syscall.ECONNRESET.
package errno

import "syscall"

// The errors of the system.
const (
	ConnReset   = syscall.ECONNRESET
	ConnRefused = syscall.ECONNREFUSED
	BrokenPipe  = syscall.EPIPE // a write to a connection that has ended
)
