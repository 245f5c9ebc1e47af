package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestMain makes the test binary a client with a flaw if its first argument
// says so.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], flawFlag) {
		serveFlawed(strings.TrimPrefix(os.Args[1], flawFlag))
		return
	}
	os.Exit(m.Run())
}

const flawFlag = "-flaw="

// serveFlawed is a client whose only fault is its flaw. "" is none.
func serveFlawed(flaw string) {
	switch flaw {
	case "no first line":
		fmt.Println(`{"id": "a"}`)
	case "ends":
		fmt.Fprintln(os.Stderr, "out of order")
		return
	default:
		fmt.Println(`{"client": "flawed 1"}`)
	}
	var mu sync.Mutex
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var ask Ask
		if err := json.Unmarshal(lines.Bytes(), &ask); err != nil {
			panic(err)
		}
		go func() {
			reply := Reply{ID: ask.ID}
			if flaw == "other id" {
				reply.ID = "other"
			}
			body, err := flawed{flaw}.send(ask, &reply)
			if err != nil {
				reply.Error = err.Error()
			}
			reply.SHA256 = digest(body)
			line, _ := json.Marshal(reply)
			mu.Lock()
			defer mu.Unlock()
			if flaw == "no JSON" {
				line = line[1:]
			}
			fmt.Println(string(line))
			if flaw == "answers twice" {
				fmt.Println(string(line))
			}
		}()
	}
}

// flawed is a small client that retries, with one flaw.
type flawed struct{ flaw string }

func (f flawed) send(ask Ask, reply *Reply) ([]byte, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if ask.Cancel > 0 && f.flaw != "ignores the caller" {
		defer time.AfterFunc(duration(ask.Cancel), cancel).Stop()
	}
	switch f.flaw {
	case "log":
		fmt.Fprintln(os.Stderr, ask.URL)
	case "waits for the stream":
		time.Sleep(duration(ask.Pace))
	case "hangs":
		select {}
	}
	most := 3
	switch f.flaw {
	case "no cap":
		most = 20
	case "hedges":
		go func() { _, _, _ = f.attempt(context.Background(), ask, 1) }()
		time.Sleep(300 * time.Millisecond)
	}
	for n := 1; ; n++ {
		resp, body, err := f.attempt(ctx, ask, n)
		wait, again := f.wait(ask, resp, err)
		if again && n < most && ctx.Err() == nil {
			select {
			case <-time.After(wait):
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		if resp != nil {
			reply.Status = resp.StatusCode
		}
		if f.flaw == "part of a body" && errors.Is(err, io.ErrUnexpectedEOF) {
			err = nil
		}
		if f.flaw == "error" && err != nil {
			err = fmt.Errorf("%s: %w", ask.URL, err)
		}
		return body, err
	}
}

// wait returns whether an attempt is followed by another, and the time before.
func (f flawed) wait(ask Ask, resp *http.Response, err error) (time.Duration, bool) {
	seconds := 0
	again := err != nil && resp == nil
	if resp != nil {
		seconds, _ = strconv.Atoi(resp.Header.Get("Retry-After"))
		again = resp.StatusCode == 503 || f.flaw == "final" && resp.StatusCode == 404
	}
	if ask.Method == "POST" && ask.Headers["Idempotency-Key"] == "" && f.flaw != "not idempotent" {
		return 0, false
	}
	switch f.flaw {
	case "no delay":
		return 0, again
	case "early":
		return time.Second / 2, again
	case "waits for a day":
		return time.Duration(seconds) * time.Second, again
	}
	return max(100*time.Millisecond, time.Duration(seconds)*time.Second), again && seconds < 60
}

var shared = &http.Client{}

func (f flawed) attempt(ctx context.Context, ask Ask, n int) (*http.Response, []byte, error) {
	client := shared
	switch f.flaw {
	case "connections":
		client = &http.Client{Transport: &http.Transport{}}
	case "redirects to a GET":
		client = &http.Client{CheckRedirect: func(req *http.Request, _ []*http.Request) error {
			req.Method, req.Body, req.ContentLength = "GET", nil, 0
			return nil
		}}
	case "stale":
		return f.raw(ask)
	}
	size := ask.Body
	if f.flaw == "half of the body" && n > 1 {
		size /= 2
	}
	var body io.Reader = strings.NewReader(strings.Repeat("x", size))
	if ask.Stream {
		body = io.MultiReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, ask.Method, ask.URL, body)
	if err != nil {
		return nil, nil, err
	}
	for name, value := range ask.Headers {
		if f.flaw == "new key" {
			value += strconv.Itoa(n)
		}
		req.Header.Set(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, nil, errors.Unwrap(err.(*url.Error))
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	return resp, content, err
}

var (
	conns   = map[string]net.Conn{}
	connsMu sync.Mutex
)

// raw sends all requests to a server on one connection, whatever it announces.
func (f flawed) raw(ask Ask) (*http.Response, []byte, error) {
	connsMu.Lock()
	defer connsMu.Unlock()
	u, err := url.Parse(ask.URL)
	if err != nil {
		return nil, nil, err
	}
	if conns[u.Host] == nil {
		if conns[u.Host], err = net.Dial("tcp", u.Host); err != nil {
			return nil, nil, err
		}
	}
	fmt.Fprintf(conns[u.Host], "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", u.Path)
	resp, err := http.ReadResponse(bufio.NewReader(conns[u.Host]), nil)
	if err != nil {
		return nil, nil, err
	}
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}

// flaws names a case and a problem for each flaw of a client.
var flaws = []struct{ flaw, caseID, problem string }{
	{"not idempotent", "post-503", "executed 3 times"},
	{"new key", "key-executed", "executed 2 times"},
	{"final", "get-404", "sends it 3 times"},
	{"early", "wait-503", "sends again after 0."},
	{"waits for a day", "wait-day", "the result is none within 3 s"},
	{"no delay", "no-delay", "sends again after 0.0"},
	{"no cap", "no-cap", "sends it 20 times"},
	{"ignores the caller", "cancel-wait", "the result comes after"},
	{"ignores the caller", "cancel-wait", "sends it"},
	{"hangs", "deadline-headers", "the result is none within 3 s"},
	{"part of a body", "cut-length", "reports a body that the server did not send as a whole"},
	{"half of the body", "upload-again", "sends 50000 of 100000 bytes"},
	{"waits for the stream", "upload-streams", "begins to send after"},
	{"connections", "one-connection", "needs 3 connections"},
	{"stale", "connection-close", "sends on a connection after its end was announced"},
	{"hedges", "overlap", "sends again while it waits for the response"},
	{"redirects to a GET", "redirect-307", "changes the method to GET"},
	{"error", "secret-error", "the error has the password"},
	{"log", "secret-log", "its log has the password"},
	{"always", "outage", "sends each request 3.00 times"},
}

// The runner finds each flaw of a client, and none in a client without it.
func TestFlaws(t *testing.T) {
	cases, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range flaws {
		t.Run(tt.flaw+"/"+tt.caseID, func(t *testing.T) {
			t.Parallel()
			i := slices.IndexFunc(cases, func(c *Case) bool { return c.ID == tt.caseID })
			if i < 0 {
				t.Fatal("there is no such case")
			}
			v, err := runFlawed(t, tt.flaw, cases[i])
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(strings.Join(v.Problems, "; "), tt.problem) {
				t.Errorf("the problems are %q: want %q", v.Problems, tt.problem)
			}
			if tt.flaw == "hangs" || tt.flaw == "always" {
				return // the client without a flaw has no deadline and no budget
			}
			if v, err = runFlawed(t, "", cases[i]); err != nil || len(v.Problems) > 0 {
				t.Errorf("without the flaw, the problems are %q: %v", v.Problems, err)
			}
		})
	}
}

// The runner reports each violation of the protocol.
func TestProtocolViolations(t *testing.T) {
	cases, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for flaw, want := range map[string]string{
		"no first line": `want {"client"`,
		"ends":          "it ended: out of order",
		"no JSON":       "invalid character",
		"other id":      "no request waits for it",
		"answers twice": "no request waits for it",
	} {
		t.Run(flaw, func(t *testing.T) {
			t.Parallel()
			_, err := runFlawed(t, flaw, cases[2])
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("the error is %v: want %q", err, want)
			}
		})
	}
}

// runFlawed runs one case with a client that has a flaw.
func runFlawed(t *testing.T, flaw string, c *Case) (Verdict, error) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cl, err := startClient([]string{program, flawFlag + flaw}, "")
	if err != nil {
		return Verdict{}, err
	}
	cfg, _ := certificate()
	short := *c
	if flaw == "other id" || flaw == "no JSON" {
		short.Limit = 1
	}
	trials, err := runAll(cl, []*Case{&short}, cfg, 1)
	if err := errors.Join(err, cl.stop()); err != nil {
		return Verdict{}, err
	}
	return judge(trials[0]), nil
}

// The cases are valid, of the number that README.md says, and each of their
// steps can be sent: a client without a flaw gets an answer or an error.
func TestCases(t *testing.T) {
	cases, err := load()
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%d cases", len(cases)); !bytes.Contains(readme, []byte(want)) {
		t.Errorf("README.md does not say %q", want)
	}
	bad := &Case{Level: "MAY", Server: Server{Sends: []Step{{Status: 200, Fault: "reset", Cut: "x"}}}}
	err = bad.check()
	for _, want := range []string{
		`level: "MAY": want one of`, `cut: "x"`, "want a status or a fault", "id: want",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v: want %q", err, want)
		}
	}
}

// cases/schema.json has the fields of the types that read the cases, and their
// values.
func TestSchema(t *testing.T) {
	data, err := files.ReadFile("cases/schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type node struct {
		Properties map[string]node
		Items      *node
		Enum       []any
		Defs       map[string]node `json:"$defs"`
	}
	var schema node
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	top, step := schema.Items.Properties, schema.Defs["step"].Properties
	for _, tt := range []struct {
		got  map[string]node
		want any
	}{
		{top, Case{}}, {top["request"].Properties, Request{}}, {top["server"].Properties, Server{}},
		{top["server"].Properties["windows"].Items.Properties, Window{}},
		{top["allowed"].Properties, Allowed{}}, {step, Step{}},
	} {
		var want []string
		for field := range reflect.TypeOf(tt.want).Fields() {
			if name := field.Tag.Get("json"); name != "" {
				want = append(want, name)
			}
		}
		slices.Sort(want)
		if got := slices.Sorted(maps.Keys(tt.got)); !slices.Equal(got, want) {
			t.Errorf("%T: the schema has %q: want %q", tt.want, got, want)
		}
	}
	for name, values := range map[string][]string{"cut": cuts, "fault": faults, "after": afters} {
		if got := fmt.Sprint(step[name].Enum); got != fmt.Sprint(values) {
			t.Errorf("%s: the schema has %s: want %s", name, got, values)
		}
	}
}
