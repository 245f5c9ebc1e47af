//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// notifyHangup sends each SIGHUP to c, and reports whether the system has that
// signal. Operators send it to make a program read its configuration again.
func notifyHangup(c chan<- os.Signal) bool {
	signal.Notify(c, syscall.SIGHUP)
	return true
}

func stopHangup(c chan<- os.Signal) { signal.Stop(c) }
