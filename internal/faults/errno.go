//go:build !windows && !plan9

package faults

import "syscall"

// What the system calls a connection that was reset, and one that was refused.
// Tests compare errors with these, since Windows has numbers of its own: there,
// syscall.ECONNRESET is a value that no system call returns.
const (
	ConnReset   = syscall.ECONNRESET
	ConnRefused = syscall.ECONNREFUSED
)
