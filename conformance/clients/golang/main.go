// Command golang is a conformance client for the HTTP libraries of Go. See
// PROTOCOL.md.
//
//	go run ./clients/golang httpretry -best
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// doer sends a request as http.Client.Do does.
type doer interface {
	Do(*http.Request) (*http.Response, error)
}

// library makes a client with the settings of its documentation's first
// example, or with the best that its documentation has for the cases.
type library struct {
	module string
	make   func(base *http.Transport, best bool) doer
}

var libraries = map[string]library{
	"httpretry":        {"github.com/seed421102f4/httpretry", newHTTPRetry},
	"net/http":         {"", func(base *http.Transport, _ bool) doer { return &http.Client{Transport: base} }},
	"go-retryablehttp": {"github.com/hashicorp/go-retryablehttp", newRetryablehttp},
	"rehttp":           {"github.com/PuerkitoBio/rehttp", newRehttp},
	"failsafe-go":      {"github.com/failsafe-go/failsafe-go", newFailsafe},
	"resty v3":         {"resty.dev/v3", newResty},
}

// Request is a line of the standard input.
type Request struct {
	ID, Method, URL        string
	Headers                map[string]string
	Body                   int
	Stream, Upgrade        bool
	Pace, Deadline, Cancel float64
}

// Result is a line of the standard output.
type Result struct {
	ID     string `json:"id"`
	Status int    `json:"status,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	Error  string `json:"error,omitempty"`
}

func main() {
	if len(os.Args) < 2 || libraries[os.Args[1]].make == nil {
		fmt.Fprintln(os.Stderr, "usage: golang LIBRARY [-best]")
		os.Exit(2)
	}
	name, best := os.Args[1], len(os.Args) > 2 && os.Args[2] == "-best"
	// Each case has a server, and so a client, of its own.
	clients := map[string]doer{}
	clientFor := func(address string) doer {
		u, err := url.Parse(address)
		if err != nil {
			panic(err)
		}
		if clients[u.Host] == nil {
			base := http.DefaultTransport.(*http.Transport).Clone()
			base.Proxy = nil
			clients[u.Host] = libraries[name].make(base, best)
		}
		return clients[u.Host]
	}

	var mu sync.Mutex
	print := func(v any) {
		line, _ := json.Marshal(v)
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(string(line))
	}
	print(map[string]string{"client": name + " " + version(libraries[name].module)})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var r Request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		client := clientFor(r.URL)
		go func() { print(run(client, r)) }()
	}
}

func run(client doer, r Request) Result {
	ctx := context.Background()
	if r.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, seconds(r.Deadline))
		defer cancel()
	}
	if r.Cancel > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(seconds(r.Cancel), cancel).Stop()
	}
	result := Result{ID: r.ID}
	body, err := send(ctx, client, r, &result)
	if err != nil {
		result.Error = err.Error()
	}
	sum := sha256.Sum256(body)
	result.SHA256 = hex.EncodeToString(sum[:])
	return result
}

func send(ctx context.Context, client doer, r Request, result *Result) ([]byte, error) {
	var body io.Reader
	switch {
	case r.Stream:
		body = &stream{left: r.Body, part: max(1, r.Body/10), pause: seconds(r.Pace / 10)}
	case r.Body > 0:
		body = strings.NewReader(strings.Repeat("x", r.Body))
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, body)
	if err != nil {
		return nil, err
	}
	for name, value := range r.Headers {
		req.Header.Set(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	result.Status = resp.StatusCode
	if r.Upgrade {
		conn, ok := resp.Body.(io.ReadWriter)
		if !ok {
			return nil, fmt.Errorf("the body of a %d cannot be written", resp.StatusCode)
		}
		echo := make([]byte, 4)
		if _, err = io.WriteString(conn, "ping"); err == nil {
			_, err = io.ReadFull(conn, echo)
		}
		return echo, err
	}
	return io.ReadAll(resp.Body)
}

// stream is a body that can be read once.
type stream struct {
	left, part int
	pause      time.Duration
}

func (s *stream) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(s.pause)
	n := min(s.left, s.part, len(p))
	for i := range p[:n] {
		p[i] = 'x'
	}
	s.left -= n
	return n, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// version returns the version of a module that this program was built with.
func version(module string) string {
	if module == "" {
		return runtime.Version()
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == module && m.Replace == nil {
				return m.Version
			}
		}
	}
	return "this tree"
}
