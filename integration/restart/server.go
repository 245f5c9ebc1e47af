package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"
)

// serve starts a net/http server at addr, whose port may be 0, and returns its
// address and a function that shuts it down.
func serve(addr string, handler http.Handler) (string, func()) {
	l, err := net.Listen("tcp", addr)
	check(err)
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(l) }() // until it is shut down
	return l.Addr().String(), func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = server.Shutdown(ctx) // a client may keep its connection
		_ = server.Close()
	}
}

func well(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "well\n") // the client may be gone
}

// unavailable is a proxy that answers 503 for a server that is down.
func unavailable(server string) http.Handler {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: server})
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	return proxy
}

// resetting starts a proxy for connections. It resets those for which it has no
// connection to the server.
func resetting(server string) (string, func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go relay(client, server)
		}
	}()
	return l.Addr().String(), func() { _ = l.Close() }
}

func relay(client net.Conn, server string) {
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
}
