package faults

import "syscall"

// What the system calls a connection that was reset, one that was refused, and
// one that is written to after its end.
const (
	ConnReset   = syscall.ErrorString("connection reset")
	ConnRefused = syscall.ErrorString("connection refused")
	BrokenPipe  = syscall.ErrorString("write on closed pipe")
)
