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

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/policies"
	"github.com/seed421102f4/httpretry/strategies"
)

const apiKey = "sk-test"

// quick is the recommended policy without waits.
func quick() httpretry.Policy {
	p := policies.OpenAI()
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	return p
}

// start returns a server that supports enough of OpenAI's API, and a client. At
// the end it checks that every attempt was authorized.
func start(t *testing.T, p httpretry.Policy, faults ...sdktest.Fault) (*sdktest.Server, openai.Client) {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(pattern, kind, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, body)
		})
	}
	answer("GET /v1/models/m", "application/json", `{"id":"m","owned_by":"us"}`)
	answer("POST /v1/chat/completions", "application/json", `{"choices":[{"message":{"content":"hello"}}]}`)
	answer("POST /v1/chat/completions/stream", "text/event-stream",
		"data: {\"choices\":[{\"delta\":{\"content\":\"hel\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"lo\"}}]}\n\ndata: [DONE]\n\n")
	answer("POST /v1/files", "application/json", `{"id":"file-1"}`)
	server := sdktest.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if content, _ := io.ReadAll(r.Body); bytes.Contains(content, []byte(`"stream":true`)) {
			r.URL.Path += "/stream"
		}
		mux.ServeHTTP(w, r)
	}), faults...)
	client, err := newClient(server.URL+"/v1/", apiKey, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, r := range server.Requests() {
			if got := r.Header.Get("Authorization"); got != "Bearer "+apiKey {
				t.Errorf("%s %s: Authorization %q", r.Method, r.RequestURI, got)
			}
		}
	})
	return server, client
}

// limited is the response to too many requests, or tokens, in a minute.
func limited() sdktest.Fault {
	return sdktest.Answer(429, `{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}`,
		"Retry-After-Ms", "1", "Retry-After", "1", "X-Should-Retry", "true", "X-Ratelimit-Remaining-Requests", "0")
}

func overloaded(header ...string) sdktest.Fault {
	return sdktest.Answer(503, `{"error":{"message":"The engine is currently overloaded"}}`, header...)
}

func question() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: "m", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("?")},
	}
}

func complete(ctx context.Context, client openai.Client) error {
	_, err := client.Chat.Completions.New(ctx, question())
	return err
}

func upload(ctx context.Context, client openai.Client) error {
	_, err := client.Files.New(ctx, openai.FileNewParams{File: strings.NewReader("{}"), Purpose: openai.FilePurposeBatch})
	return err
}

// counts returns the attempt numbers that the server got.
func counts(server *sdktest.Server) (all []string) {
	for _, r := range server.Requests() {
		all = append(all, r.Header.Get("X-Stainless-Retry-Count"))
	}
	return all
}

func TestRun(t *testing.T) {
	server, client := start(t, quick(), overloaded())
	var out bytes.Buffer
	if err := run(t.Context(), client, "m", "?", &out); err != nil {
		t.Fatal(err)
	}
	if want := "m is by us\nit says: hello\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
	if got, want := counts(server), []string{"0", "1", "0", "1"}; !slices.Equal(got, want) {
		t.Errorf("retry counts %q, want %q", got, want)
	}
}

func TestFailures(t *testing.T) {
	for name, test := range map[string]struct {
		fault            sdktest.Fault
		complete, upload int // requests; the call succeeds if there are two
	}{
		"429":                   {limited(), 2, 2},
		"503":                   {overloaded(), 2, 1},
		"503, not to be asked":  {overloaded("X-Should-Retry", "false"), 1, 1},
		"400, but it says so":   {sdktest.Answer(400, `{"error":{}}`, "X-Should-Retry", "true"), 2, 1},
		"429, out of quota":     {sdktest.Answer(429, `{"error":{}}`, "X-Should-Retry", "false"), 1, 1},
		"401":                   {sdktest.Answer(401, `{"error":{"code":"invalid_api_key"}}`), 1, 1},
		"reset":                 {sdktest.Reset(), 2, 1},
		"a gateway's own words": {sdktest.Answer(502, "<html>"), 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, call := range []struct {
				name string
				do   func(context.Context, openai.Client) error
				want int
			}{{"completion", complete, test.complete}, {"upload", upload, test.upload}} {
				server, client := start(t, quick(), test.fault)
				err := call.do(t.Context(), client)
				if got := len(server.Requests()); got != call.want || (err == nil) != (call.want == 2) {
					t.Errorf("%s: %d requests, want %d; error %v", call.name, got, call.want, err)
				}
			}
		})
	}
}

// A file would exist twice. An answer is only computed twice.
func TestLostAnswer(t *testing.T) {
	server, client := start(t, quick(), sdktest.Lost())
	if err := upload(t.Context(), client); err == nil || server.Executed("POST") != 1 {
		t.Errorf("upload: executed %d times, want 1; error %v, want one", server.Executed("POST"), err)
	}
	server, client = start(t, quick(), sdktest.Lost())
	if err := complete(t.Context(), client); err != nil || server.Executed("POST") != 2 {
		t.Errorf("completion: executed %d times, want 2; error %v", server.Executed("POST"), err)
	}
}

// A stream is retried until its response begins.
func TestStream(t *testing.T) {
	server, client := start(t, quick(), overloaded(), limited())
	stream := client.Chat.Completions.NewStreaming(t.Context(), question())
	defer stream.Close()
	var text strings.Builder
	for stream.Next() {
		text.WriteString(stream.Current().Choices[0].Delta.Content)
	}
	if err := stream.Err(); err != nil || text.String() != "hello" || len(server.Requests()) != 3 {
		t.Errorf("%q after %d requests, want \"hello\" after 3; error %v", text.String(), len(server.Requests()), err)
	}
}

// openai-go reads a file into memory before it sends it.
func TestUpload(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	file := sdktest.File(t, "batch.jsonl", content)
	server, client := start(t, quick(), limited())
	_, err := client.Files.New(t.Context(), openai.FileNewParams{File: file, Purpose: openai.FilePurposeBatch})
	if requests := server.Requests(); err != nil || len(requests) != 2 {
		t.Fatalf("%d requests, want 2; error %v", len(requests), err)
	}
	for _, r := range server.Requests() {
		if got := r.Part(t, "file"); sha256.Sum256(got) != sha256.Sum256(content) {
			t.Errorf("the server got %d bytes, which are not the file's %d", len(got), len(content))
		}
	}
}

// Without WithMaxRetries(0), attempts multiply, and openai-go retries the
// upload.
func TestRetriesMultiply(t *testing.T) {
	p := quick()
	p.Budget = httpretry.Unlimited{} // the default would end this earlier
	down := slices.Repeat([]sdktest.Fault{overloaded("Retry-After-Ms", "1")}, 20)
	for _, test := range []struct {
		do            func(context.Context, openai.Client) error
		with, without int // with and without that option
	}{{complete, 3, 9}, {upload, 1, 3}} {
		server, client := start(t, p, down...)
		if err := test.do(t.Context(), client); err == nil || len(server.Requests()) != test.with {
			t.Errorf("%d requests, want %d; error %v, want one", len(server.Requests()), test.with, err)
		}
		server, client = start(t, p, down...)
		client.Options = append(client.Options, option.WithMaxRetries(2)) // openai-go's default
		retrying := openai.NewClient(client.Options...)
		if err := test.do(t.Context(), retrying); err == nil || len(server.Requests()) != test.without {
			t.Errorf("without the line: %d requests, want %d; error %v, want one", len(server.Requests()), test.without, err)
		}
	}
}
