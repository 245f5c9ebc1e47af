// Package child runs an HTTP server in a process of its own, so that its CPU
// time, memory and goroutines do not count as those of a client.
package child

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
)

// serveFlag is the argument of the program as a server.
const serveFlag = "-serve"

// ServeIfStarted makes a program that Start has started a server, and does not
// return then. In any other program it does nothing.
func ServeIfStarted(newHandler func() http.Handler) {
	if len(os.Args) < 2 || os.Args[1] != serveFlag {
		return
	}
	if err := serve(newHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve prints its URL and serves handler until its standard input is closed,
// which is when its parent has ended.
func serve(handler http.Handler) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	stopped := make(chan error, 2)
	go func() { stopped <- http.Serve(listener, handler) }()
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		stopped <- err
	}()
	fmt.Printf("http://%s\n", listener.Addr())
	return <-stopped
}

// Server is a process that runs ServeIfStarted.
type Server struct {
	URL   string
	stdin io.Closer
	cmd   *exec.Cmd
}

// Start starts this program once more, as a server.
func Start() (*Server, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, serveFlag)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the server process printed %q: %w", line, err), cmd.Process.Kill(), cmd.Wait())
	}
	return &Server{strings.TrimSpace(line), stdin, cmd}, nil
}

// Stop ends the process.
func (s *Server) Stop() error { return errors.Join(s.stdin.Close(), s.cmd.Wait()) }
