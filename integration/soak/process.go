package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"testing"
)

// serveFlag is the argument of this program as the servers' process.
const serveFlag = "-serve"

// host has the methods of testing.TB that the servers need.
type host struct{ testing.TB }

func (host) Helper()        {}
func (host) Cleanup(func()) {} // the servers end with their process
func (host) Fatal(v ...any) { log.Fatal(v...) }

// serve runs the servers until the standard input is closed, which is when the
// parent process has ended.
func serve() {
	s := newServer(host{}, drawFault)
	fmt.Println(s.http1.Addr, s.http2.Addr)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		log.Fatal(err)
	}
}

// servers is the process of the servers.
type servers struct {
	addr1, addr2 string // over HTTP/1 and HTTP/2
	stdin        io.Closer
	cmd          *exec.Cmd
}

func startServers() (*servers, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &servers{cmd: exec.Command(program, serveFlag)}
	p.cmd.Stderr = os.Stderr
	stdin, err1 := p.cmd.StdinPipe()
	stdout, err2 := p.cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := fmt.Fscanln(stdout, &p.addr1, &p.addr2); err != nil {
		return nil, errors.Join(fmt.Errorf("the servers' addresses: %w", err), p.stop())
	}
	return p, nil
}

func (p *servers) stop() error { return errors.Join(p.stdin.Close(), p.cmd.Wait()) }

// stats returns the counts of the servers.
func (p *servers) stats() (stats, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var st stats
	resp, err := client.Get("http://" + p.addr1 + statsPath)
	if err != nil {
		return st, err
	}
	defer resp.Body.Close()
	return st, json.NewDecoder(resp.Body).Decode(&st)
}
