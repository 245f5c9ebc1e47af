package main

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// startRedis starts redis-server or valkey-server, or else miniredis.
func startRedis() (addr, kind string, stop func(), err error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			addr, stop, err := startProgram(path)
			return addr, name, stop, err
		}
	}
	embedded, err := miniredis.Run()
	if err != nil {
		return "", "", nil, err
	}
	return embedded.Addr(), "miniredis", embedded.Close, nil
}

// startProgram starts a server on a free port of the loopback interface.
func startProgram(path string) (addr string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr = l.Addr().String()
	_, port, err := net.SplitHostPort(addr)
	if err := errors.Join(err, l.Close()); err != nil {
		return "", nil, err
	}
	cmd := exec.Command(path, "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no")
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill() // it has nothing to keep
		_ = cmd.Wait()
	}
	for range 500 {
		if conn, err := net.Dial("tcp", addr); err == nil {
			return addr, stop, conn.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	return "", nil, fmt.Errorf("%s does not listen at %s", path, addr)
}
