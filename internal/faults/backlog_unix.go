//go:build unix

package faults

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"
)

// Backlog returns an address at which connections are neither accepted nor
// refused, because its queue is full. Where the system refuses connections in
// that case, Backlog skips the test.
func Backlog(t testing.TB) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	addr := bind(t, fd)
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	// The queue holds at least one connection. It is full as soon as another
	// one is not established in time.
	dialer := net.Dialer{Timeout: 10 * time.Second}
	for {
		conn, err := dialer.Dial("tcp", addr)
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			dialer.Timeout = 50 * time.Millisecond
			continue
		}
		if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
			t.Fatal(err)
		}
		return addr
	}
}

// bind gives the socket an address of its own.
func bind(t testing.TB, fd int) (addr string) {
	t.Helper()
	loopback := &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	if err := syscall.Bind(fd, loopback); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := name.(*syscall.SockaddrInet4)
	return (&net.TCPAddr{IP: at.Addr[:], Port: at.Port}).String()
}
