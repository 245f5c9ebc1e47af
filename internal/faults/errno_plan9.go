package faults

import "syscall"

// The system's errors for a connection that was reset, for one that was
// refused, and for a write to a connection that has ended.
const (
	ConnReset   = syscall.ErrorString("connection reset")
	ConnRefused = syscall.ErrorString("connection refused")
	BrokenPipe  = syscall.ErrorString("write on closed pipe")
)
