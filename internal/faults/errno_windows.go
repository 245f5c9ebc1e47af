package faults

import "syscall"

// The system's errors for a connection that was reset, for one that was
// refused, and for a write to a connection that has ended. Tests use these,
// because Windows has numbers of its own, and no system call returns
// syscall.ECONNRESET.
const (
	ConnReset   = syscall.WSAECONNRESET
	ConnRefused = syscall.Errno(10061) // WSAECONNREFUSED
	BrokenPipe  = syscall.Errno(10053) // WSAECONNABORTED
)
