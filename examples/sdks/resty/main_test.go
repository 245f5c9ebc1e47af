package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-resty/resty/v2"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/strategies"
)

const token = "secret"

// quick is the recommended policy without waits.
func quick() httpretry.Policy {
	p := policy()
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	return p
}

// silent is a logger without output.
type silent struct{}

func (silent) Errorf(string, ...any) {}
func (silent) Warnf(string, ...any)  {}
func (silent) Debugf(string, ...any) {}

// start returns a server with a little API, and a client. At the end it
// checks that every attempt was authorized.
func start(t *testing.T, p httpretry.Policy, faults ...sdktest.Fault) (*sdktest.Server, *resty.Client) {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(pattern string, status int, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
	}
	answer("GET /items/1", 200, `{"id":1,"name":"One"}`)
	answer("POST /items", 201, `{"id":2,"name":"Two"}`)
	answer("PUT /items/1/content", 200, `{}`)
	server := sdktest.New(t, mux, faults...)
	client, err := newClient(server.URL, token, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, r := range server.Requests() {
			if got := r.Header.Get("Authorization"); got != "Bearer "+token {
				t.Errorf("%s %s: Authorization %q", r.Method, r.RequestURI, got)
			}
		}
	})
	return server, client.SetLogger(silent{})
}

func get(ctx context.Context, client *resty.Client) (*resty.Response, error) {
	return client.R().SetContext(ctx).Get("/items/1")
}

func post(ctx context.Context, client *resty.Client) (*resty.Response, error) {
	return client.R().SetContext(ctx).SetBody(item{Name: "Two"}).Post("/items")
}

func postWithKey(ctx context.Context, client *resty.Client) (*resty.Response, error) {
	return client.R().SetContext(ctx).SetHeader("Idempotency-Key", "k").SetBody(item{Name: "Two"}).Post("/items")
}

func TestRun(t *testing.T) {
	server, client := start(t, quick(), sdktest.Answer(503, ""))
	var out bytes.Buffer
	if err := run(t.Context(), client, "Two", "k", &out); err != nil {
		t.Fatal(err)
	}
	want := "GET URL/items/1: 200 OK after 2 attempts: \"One\"\nPOST URL/items: 201 Created after 2 attempts: item 2\n"
	if got := strings.ReplaceAll(out.String(), server.URL, "URL"); got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

func TestFailures(t *testing.T) {
	for name, test := range map[string]struct {
		fault            sdktest.Fault
		get, post, keyed int // requests; the call succeeds if there are two
	}{
		"503":            {sdktest.Answer(503, ""), 2, 1, 2},
		"429":            {sdktest.Answer(429, "", "Retry-After", "0"), 2, 1, 2},
		"429 for an age": {sdktest.Answer(429, "", "Retry-After", "3600"), 1, 1, 1},
		"409":            {sdktest.Answer(409, ""), 1, 1, 2},
		"404":            {sdktest.Answer(404, ""), 1, 1, 1},
		"reset":          {sdktest.Reset(), 2, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			for _, call := range []struct {
				name string
				do   func(context.Context, *resty.Client) (*resty.Response, error)
				want int
			}{{"GET", get, test.get}, {"POST", post, test.post}, {"POST with key", postWithKey, test.keyed}} {
				server, client := start(t, quick(), test.fault)
				resp, err := call.do(t.Context(), client)
				ok := err == nil && resp.IsSuccess()
				if got := len(server.Requests()); got != call.want || ok != (call.want == 2) {
					t.Errorf("%s: %d requests, want %d; error %v", call.name, got, call.want, err)
				}
			}
		})
	}
}

func TestLostAnswerIsNotDoubled(t *testing.T) {
	server, client := start(t, quick(), sdktest.Lost())
	_, err := post(t.Context(), client)
	if got := server.Executed("POST"); err == nil || got != 1 {
		t.Errorf("executed %d times, want 1; error %v, want one", got, err)
	}

	server, client = start(t, quick(), sdktest.Lost())
	if _, err := postWithKey(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	for _, r := range server.Requests() { // a server with such keys executes one of these
		if r.Header.Get("Idempotency-Key") != "k" || string(r.Content) != `{"name":"Two"}` {
			t.Errorf("the server got %q with key %q", r.Content, r.Header.Get("Idempotency-Key"))
		}
	}
}

// Bodies arrive complete. resty reads them into memory first.
func TestUpload(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	file := sdktest.File(t, "content.bin", content)
	for name, body := range map[string]any{
		"memory": content,
		"file":   file,
		"stream": io.MultiReader(bytes.NewReader(content)),
	} {
		t.Run(name, func(t *testing.T) {
			server, client := start(t, quick(), sdktest.Answer(503, ""), sdktest.Reset())
			resp, err := client.R().SetContext(t.Context()).SetBody(body).Put("/items/1/content")
			if requests := server.Requests(); err != nil || !resp.IsSuccess() || len(requests) != 3 {
				t.Fatalf("%d requests, want 3; error %v", len(requests), err)
			}
			for _, r := range server.Requests() {
				if sha256.Sum256(r.Content) != sha256.Sum256(content) {
					t.Errorf("the server got %d bytes, which are not those that were sent", len(r.Content))
				}
			}
		})
	}
}

// With another SetRetryCount, attempts multiply, and resty sends a POST again
// that was executed.
func TestRetriesMultiply(t *testing.T) {
	p := quick()
	p.Budget = httpretry.Unlimited{} // the default would end this earlier
	lost := slices.Repeat([]sdktest.Fault{sdktest.Lost()}, 20)
	for _, test := range []struct {
		do            func(context.Context, *resty.Client) (*resty.Response, error)
		with, without int // with and without that option
	}{{get, 3, 9}, {post, 1, 3}} {
		server, client := start(t, p, lost...)
		if _, err := test.do(t.Context(), client); err == nil || server.Executed("") != test.with {
			t.Errorf("executed %d times, want %d; error %v, want one", server.Executed(""), test.with, err)
		}
		server, client = start(t, p, lost...)
		client.SetRetryCount(2).SetRetryWaitTime(time.Millisecond).SetRetryMaxWaitTime(time.Millisecond)
		if _, err := test.do(t.Context(), client); err == nil || server.Executed("") != test.without {
			t.Errorf("without the line: executed %d times, want %d; error %v, want one", server.Executed(""), test.without, err)
		}
	}
}
