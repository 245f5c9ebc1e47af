package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A request with secrets has them in its URL. Each case has its own.
func password(c *Case) string { return "password-of-" + c.ID }
func token(c *Case) string    { return "token-of-" + c.ID }

// Trial is what one client did in one case, as its server and its results show.
type Trial struct {
	Case        *Case
	Calls       []Call
	Sends       []*Send
	Connections int
	Log         []byte // of the client, until the end of the case
}

// Call is one request of a trial.
type Call struct {
	Reply
	Answered bool          // within the limit
	Took     time.Duration // until the result
}

// runAll runs the cases with a client, several at the same time.
func runAll(cl *client, cases []*Case, cfg *tls.Config, parallel int) ([]*Trial, error) {
	trials, errs := make([]*Trial, len(cases)), make(chan error, len(cases))
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, c := range cases {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			var err error
			if trials[i], err = runCase(cl, c, cfg); err != nil {
				errs <- fmt.Errorf("%s: %w", c.ID, err)
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return nil, err
	default:
		return trials, nil
	}
}

func runCase(cl *client, c *Case, cfg *tls.Config) (*Trial, error) {
	s, err := newSession(c, cfg)
	if err != nil {
		return nil, err
	}
	r := c.Request
	t := &Trial{Case: c, Calls: make([]Call, r.Count)}
	if r.Warm != "" {
		ask := s.ask(0)
		ask.Method, ask.URL, ask.Body = "GET", s.url()+warmPath, 0
		if warm, _ := cl.send(ask, 10*time.Second); warm.Status == 0 {
			t.Calls = []Call{{Reply: warm}}
			_, err = s.close()
			return t, err
		}
		time.Sleep(100 * time.Millisecond) // for the end of the connection to arrive
	}
	s.begin()
	send := func(n int) {
		start := time.Now()
		reply, ok := cl.send(s.ask(n), duration(c.Limit))
		t.Calls[n-1] = Call{Reply: reply, Answered: ok, Took: reply.at.Sub(start)}
	}
	var next atomic.Int32
	var wg sync.WaitGroup
	for range r.Workers {
		wg.Go(func() {
			for n := int(next.Add(1)); n <= r.Count; n = int(next.Add(1)) {
				send(n)
			}
		})
	}
	for n := 1; n <= r.Count && r.Workers == 0; n++ {
		wg.Go(func() { send(n) })
		time.Sleep(duration(r.Every))
	}
	wg.Wait()
	time.Sleep(duration(c.Linger))
	t.Log = cl.stderr.Bytes()
	t.Sends, err = s.close()
	t.Connections = s.accepted
	return t, err
}

func (s *session) url() string {
	if s.c.Request.HTTP2 {
		return "https://" + s.addr
	}
	return "http://" + s.addr
}

// ask returns the n-th request of the case.
func (s *session) ask(n int) Ask {
	r := s.c.Request
	ask := Ask{
		ID: fmt.Sprintf("%s#%d", s.c.ID, n), Method: r.Method, URL: fmt.Sprintf("%s/%d", s.url(), n),
		Headers: map[string]string{}, Body: r.Body, Stream: r.Stream, Pace: r.Pace,
		Deadline: r.Deadline, Cancel: r.Cancel, Upgrade: r.Upgrade,
	}
	if r.Key {
		ask.Headers["Idempotency-Key"] = fmt.Sprintf("key-%s-%d", s.c.ID, n)
	}
	if r.Upgrade {
		ask.Headers["Connection"], ask.Headers["Upgrade"] = "Upgrade", "echo"
	}
	if r.Secrets {
		ask.URL = fmt.Sprintf("http://user:%s@%s/%d?token=%s", password(s.c), s.addr, n, token(s.c))
	}
	return ask
}

// leaks returns which secret is in a text, or "".
func leaks(c *Case, text []byte) string {
	for _, secret := range []string{password(c), token(c)} {
		if bytes.Contains(text, []byte(secret)) {
			return secret
		}
	}
	return ""
}
