package main

import (
	"bytes"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
	"github.com/seed421102f4/httpretry/internal/faults"
)

const (
	password = "pa55word"
	token    = "t0ken"
)

// withSecrets returns a URL with a password and with a token in its query.
func withSecrets(addr string) string {
	u := url.URL{Scheme: "http", User: url.UserPassword("user", password), Host: addr, Path: "/", RawQuery: "token=" + token}
	return u.String()
}

// secretsInLog sends a request to a server that responds with 503, and one to a
// port that refuses connections, with a URL that contains secrets. The peer
// logs in its own format and at its default level, if it has a logger. By
// default, go-retryablehttp and resty log, and httpretry and heimdall do not.
// Logs are read by more people than may know secrets, so they must contain
// none.
func secretsInLog(t *trial) cell {
	var log lockedBuffer
	c := t.peer.New(peers.Options{Base: faults.Base(t, nil), Attempts: 3, Wait: shortWait, Log: &log})
	for _, addr := range []string{t.answers("busy", 503).Addr, faults.Refused(t)} {
		t.send(c, t.request("GET", withSecrets(addr), ""), 5*time.Second)
	}
	text := log.String()
	hasPassword, hasToken := strings.Contains(text, password), strings.Contains(text, token)
	switch {
	case text == "":
		return judge(true, "logs nothing")
	case hasPassword && hasToken:
		return judge(false, "both")
	case hasPassword:
		return judge(false, "the password")
	case hasToken:
		return judge(false, "the token")
	}
	return judge(true, "neither")
}

// secretsInError sends such a request to a port that refuses connections. The
// *url.Error of http.Client contains the URL once, without the password. The
// peer must not add to that.
func secretsInError(t *trial) cell {
	c := t.client(shortWait)
	r := t.send(c, t.request("GET", withSecrets(faults.Refused(t)), ""), 5*time.Second)
	if r.err == nil {
		t.Fatal("a response from a port that refuses connections")
	}
	text := r.err.Error()
	times := strings.Count(text, token)
	if strings.Contains(text, password) {
		return judge(false, "the password, too")
	}
	return judge(times <= 1, "%d ×", times)
}

// lockedBuffer is a buffer for concurrent use.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
