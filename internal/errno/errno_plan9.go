package errno

import "syscall"

// The errors of the system.
const (
	ConnReset   = syscall.ErrorString("connection reset")
	ConnRefused = syscall.ErrorString("connection refused")
	BrokenPipe  = syscall.ErrorString("write on closed pipe")
)
