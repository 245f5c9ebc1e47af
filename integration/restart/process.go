package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// process is this program as a server or a proxy.
type process struct{ *exec.Cmd }

// start starts a process and waits until it listens at addr.
func start(addr string, args ...string) (process, error) {
	p := process{exec.Command(os.Args[0], args...)}
	p.Stderr = os.Stderr
	if err := p.Start(); err != nil {
		return p, err
	}
	for range 500 {
		if conn, err := net.Dial("tcp", addr); err == nil {
			return p, conn.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	p.stop()
	return p, fmt.Errorf("%v does not listen at %s", args, addr)
}

// stop tells the process to end, and waits until it has.
func (p process) stop() {
	_ = p.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	_ = p.Wait()
}

// freeAddrs returns addresses that nobody listens at.
func freeAddrs(n int) (addrs []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // later, so that no address comes twice
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

// serve is a server or a proxy, until the process is told to end.
func serve(kind string, addrs []string) error {
	l, err := net.Listen("tcp", addrs[0])
	if err != nil {
		return err
	}
	if kind == "serve-reset" {
		return resetting(l, addrs[1])
	}
	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "well\n") // the client may be gone
	}))
	if kind == "serve-503" {
		proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: addrs[1]})
		proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		handler = proxy
	}
	server := &http.Server{Handler: handler}
	ended := make(chan error)
	go func() {
		told := make(chan os.Signal, 1)
		signal.Notify(told, syscall.SIGTERM)
		<-told
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		ended <- server.Shutdown(ctx)
	}()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

// resetting is a proxy for connections. It resets those for which it has no
// connection to the server.
func resetting(l net.Listener, server string) error {
	for {
		client, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer client.Close()
			conn, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.(*net.TCPConn).SetLinger(0) // Close then resets it
				return
			}
			defer conn.Close()
			go func() {
				defer conn.Close() // ends the copy below
				_, _ = io.Copy(conn, client)
			}()
			_, _ = io.Copy(client, conn)
		}()
	}
}
