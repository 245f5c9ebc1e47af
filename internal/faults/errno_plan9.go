package faults

import "syscall"

// What the system calls a connection that was reset, and one that was refused.
const (
	ConnReset   = syscall.ErrorString("connection reset")
	ConnRefused = syscall.ErrorString("connection refused")
)
