package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// Ask is a line on the client's standard input: a request. PROTOCOL.md
// describes it.
type Ask struct {
	ID       string            `json:"id"`
	Method   string            `json:"method"`
	URL      string            `json:"url"`
	Headers  map[string]string `json:"headers"`
	Body     int               `json:"body"`
	Stream   bool              `json:"stream"`
	Pace     float64           `json:"pace"`
	Deadline float64           `json:"deadline"`
	Cancel   float64           `json:"cancel"`
	Upgrade  bool              `json:"upgrade"`
}

// Reply is a line on the client's standard output: a result. The first line
// has the client's name and version instead.
type Reply struct {
	ID     string `json:"id"`
	Status int    `json:"status"`
	SHA256 string `json:"sha256"`
	Error  string `json:"error"`
	Skip   string `json:"skip"`
	Client string `json:"client"`

	at time.Time
}

// client is a running command.
type client struct {
	name    string // as it calls itself
	command []string
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	stderr  lockedBuffer
	ended   chan struct{} // closed when its output has ended

	mu      sync.Mutex
	pending map[string]chan Reply // by id, until it is answered
	failure error                 // of its output
}

// startClient starts a command and waits for its first line.
func startClient(command []string, roots string) (*client, error) {
	c := &client{command: command, ended: make(chan struct{}), pending: map[string]chan Reply{}}
	c.cmd = exec.Command(command[0], command[1:]...)
	c.cmd.Stderr = &c.stderr
	c.cmd.Env = os.Environ()
	// What the TLS libraries of the languages read.
	for _, name := range []string{
		"CONFORMANCE_CA", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
	} {
		c.cmd.Env = append(c.cmd.Env, name+"="+roots)
	}
	for _, name := range []string{"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"} {
		c.cmd.Env = append(c.cmd.Env, name+"=")
	}
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	first := make(chan Reply, 1)
	c.pending[""] = first
	go c.read(stdout)
	select {
	case reply := <-first:
		if c.name = reply.Client; c.name != "" {
			return c, nil
		}
		err = errors.New(`the first line: want {"client": "a name and a version"}`)
	case <-c.ended:
		err = fmt.Errorf("it ended: %s", bytes.TrimSpace(c.stderr.Bytes()))
	case <-time.After(time.Minute):
		err = errors.New("no line within a minute")
	}
	return nil, errors.Join(err, c.stop())
}

// read passes each line to the request that it answers.
func (c *client) read(stdout io.Reader) {
	defer close(c.ended)
	scanner := bufio.NewScanner(stdout)
	for first := true; scanner.Scan(); first = false {
		reply := Reply{at: time.Now()}
		err := json.Unmarshal(scanner.Bytes(), &reply)
		if first {
			reply.ID = ""
		}
		c.mu.Lock()
		waiting, known := c.pending[reply.ID]
		delete(c.pending, reply.ID)
		switch {
		case err != nil:
			c.failure = fmt.Errorf("%q: %w", scanner.Text(), err)
		case !known:
			c.failure = fmt.Errorf("%q: no request waits for it", scanner.Text())
		case waiting != nil: // nil after the limit
			waiting <- reply
		}
		c.mu.Unlock()
	}
}

// send sends a request and returns its result, or false after the limit.
func (c *client) send(ask Ask, limit time.Duration) (Reply, bool) {
	line, err := json.Marshal(ask)
	if err != nil {
		return Reply{Error: err.Error()}, false
	}
	result := make(chan Reply, 1)
	c.mu.Lock()
	c.pending[ask.ID] = result
	_, err = c.stdin.Write(append(line, '\n'))
	c.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	if err == nil {
		select {
		case reply := <-result:
			return reply, true
		case <-c.ended:
		case <-timer.C:
		}
	}
	c.mu.Lock()
	c.pending[ask.ID] = nil
	c.mu.Unlock()
	return Reply{}, false
}

// stop ends the command, and returns an error if it broke the protocol.
func (c *client) stop() error {
	_ = c.stdin.Close()
	select {
	case <-c.ended:
	case <-time.After(2 * time.Second): // it has requests that never end
	}
	_ = c.cmd.Process.Kill()
	<-c.ended
	_ = c.cmd.Wait()
	return c.failure
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

func (b *lockedBuffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.buffer.Bytes())
}
