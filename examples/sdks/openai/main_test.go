package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/policies"
)

var suite = sdktest.Suite[openai.Client]{
	Service: func(w http.ResponseWriter, r *http.Request) {
		content, _ := io.ReadAll(r.Body) // from memory
		answer := `{"id":"file-1","choices":[{"message":{"content":"hello"}}]}`
		w.Header().Set("Content-Type", "application/json")
		if bytes.Contains(content, []byte(`"stream":true`)) {
			w.Header().Set("Content-Type", "text/event-stream")
			answer = `data: {"choices":[{"delta":{"content":"hel"}}]}` + "\n\n" +
				`data: {"choices":[{"delta":{"content":"lo"}}]}` + "\n\ndata: [DONE]\n\n"
		}
		_, _ = io.WriteString(w, answer)
	},
	Client: func(_ testing.TB, s *sdktest.Server, p httpretry.Policy) (openai.Client, error) {
		return newClient(s.URL+"/v1/", httpretry.Config{Policy: p})
	},
	Policy:  policies.OpenAI(),
	Check:   sdktest.Has("Authorization", "Bearer sk-test"),
	Counter: "X-Stainless-Retry-Count",
}

func Example() {
	main()
	// Output:
	// attempt 1: POST /v1/chat/completions: 503 Service Unavailable
	// attempt 2: POST /v1/chat/completions: 200 OK
	// it says: hello
}

var (
	// limited is the response to too many requests, or tokens, in a minute.
	limited = sdktest.Answer(429, `{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}`,
		"Retry-After-Ms", "1", "Retry-After", "1", "X-Should-Retry", "true", "X-Ratelimit-Remaining-Requests", "0")
	overloaded = sdktest.Answer(503, `{"error":{"message":"The engine is currently overloaded"}}`)
)

func complete(ctx context.Context, client openai.Client) error {
	_, err := client.Chat.Completions.New(ctx, question())
	return err
}

func upload(ctx context.Context, client openai.Client, body io.Reader) error {
	_, err := client.Files.New(ctx, openai.FileNewParams{File: body, Purpose: openai.FilePurposeBatch})
	return err
}

func uploadShort(ctx context.Context, client openai.Client) error {
	return upload(ctx, client, strings.NewReader("{}"))
}

// A file would exist twice. An answer is only computed twice.
func TestFailures(t *testing.T) {
	suite.Failures(t, []sdktest.Call[openai.Client]{complete, uploadShort}, map[string]sdktest.Row{
		"429":                   sdktest.Once(limited, 2, 2),
		"503":                   sdktest.Once(overloaded, 2, 1),
		"429, out of quota":     sdktest.Once(sdktest.Answer(429, `{"error":{}}`, "X-Should-Retry", "false"), 1, 1),
		"executed, reset":       sdktest.Once(sdktest.Lost, 2, 1),
		"a gateway's own words": sdktest.Once(sdktest.Answer(502, "<html>"), 2, 1),
	})
	// openai-go reads a body into memory before it sends it.
	suite.Uploads(t, 320_000, []sdktest.Fault{limited}, upload)
}

// A stream is retried until its response begins.
func TestStream(t *testing.T) {
	server, client := suite.Start(t, overloaded, limited)
	stream := client.Chat.Completions.NewStreaming(t.Context(), question())
	defer stream.Close()
	var text strings.Builder
	for stream.Next() {
		text.WriteString(stream.Current().Choices[0].Delta.Content)
	}
	require.NoError(t, stream.Err())
	assert.Equal(t, "hello", text.String())
	assert.Len(t, server.Requests(), 3)
}
