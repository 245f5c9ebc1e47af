package main

import (
	"net"
	"testing"
)

// No session gets a port that another one has had, because its server may be
// down at that time.
func TestSessionsShareNoPort(t *testing.T) {
	addrs := map[string]bool{}
	for range 500 {
		s, err := newSession(&Case{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if addrs[s.addr] {
			t.Fatalf("two sessions have %s", s.addr)
		}
		addrs[s.addr] = true
		if _, err = s.close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A server that cannot start again is an error of the run, not of the client.
func TestTakenPort(t *testing.T) {
	c := &Case{Server: Server{Windows: []Window{{To: 0.05, Step: Step{Fault: "refuse"}}}}}
	s, err := newSession(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.begin()
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s.running.Wait()
	if _, err = s.close(); err == nil {
		t.Error("close returns no error")
	}
}
