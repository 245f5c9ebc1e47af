//go:build !unix

package main

import "os"

func notifyHangup(chan<- os.Signal) bool { return false }

func stopHangup(chan<- os.Signal) {}
