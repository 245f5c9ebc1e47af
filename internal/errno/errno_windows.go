package errno

import "syscall"

// The errors of the system.
const (
	ConnReset   = syscall.WSAECONNRESET
	ConnRefused = syscall.Errno(10061) // WSAECONNREFUSED
	BrokenPipe  = syscall.Errno(10053) // WSAECONNABORTED
)
