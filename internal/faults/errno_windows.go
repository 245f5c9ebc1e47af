package faults

import "syscall"

// What the system calls a connection that was reset, one that was refused, and
// one that is written to after its end. Tests use these, since Windows has
// numbers of its own: here, syscall.ECONNRESET is a value that no system call
// returns.
const (
	ConnReset   = syscall.WSAECONNRESET
	ConnRefused = syscall.Errno(10061) // WSAECONNREFUSED
	BrokenPipe  = syscall.Errno(10053) // WSAECONNABORTED
)
