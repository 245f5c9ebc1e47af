package faults

import "syscall"

// What the system calls a connection that was reset, and one that was refused.
// Tests compare errors with these, since Windows has numbers of its own: here,
// syscall.ECONNRESET is a value that no system call returns.
const (
	ConnReset   = syscall.WSAECONNRESET
	ConnRefused = syscall.Errno(10061) // WSAECONNREFUSED
)
