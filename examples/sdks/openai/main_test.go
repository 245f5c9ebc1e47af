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
		if bytes.Contains(content, []byte(`"stream":true`)) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, `data: {"choices":[{"delta":{"content":"hel"}}]}`+"\n\n"+
				`data: {"choices":[{"delta":{"content":"lo"}}]}`+"\n\ndata: [DONE]\n\n")
			return
		}
		api(w, r)
	},
	Client: func(_ testing.TB, s *sdktest.Server, p httpretry.Policy) (openai.Client, error) {
		return newClient(s.URL+"/v1/", "sk-test", p)
	},
	Policy:  policies.OpenAI(),
	Check:   sdktest.Has("Authorization", "Bearer sk-test"),
	Counter: "X-Stainless-Retry-Count",
}

var api = sdktest.API(map[string]string{
	"GET /v1/models/m":          `{"id":"m","owned_by":"us"}`,
	"POST /v1/chat/completions": `{"choices":[{"message":{"content":"hello"}}]}`,
	"POST /v1/files":            `{"id":"file-1"}`,
})

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

func TestRun(t *testing.T) {
	suite.Run(t, overloaded(), "m is by us\nit says: hello\n",
		func(ctx context.Context, client openai.Client, out io.Writer) error {
			return run(ctx, client, "m", "?", out)
		})
}

// A file would exist twice. An answer is only computed twice.
func TestFailures(t *testing.T) {
	suite.Failures(t, []sdktest.Call[openai.Client]{complete, upload}, map[string]sdktest.Row{
		"429":                   sdktest.Once(limited(), 2, 2),
		"503":                   sdktest.Once(overloaded(), 2, 1),
		"503, not to be asked":  sdktest.Once(overloaded("X-Should-Retry", "false"), 1, 1),
		"400, but it says so":   sdktest.Once(sdktest.Answer(400, `{"error":{}}`, "X-Should-Retry", "true"), 2, 1),
		"429, out of quota":     sdktest.Once(sdktest.Answer(429, `{"error":{}}`, "X-Should-Retry", "false"), 1, 1),
		"401":                   sdktest.Once(sdktest.Answer(401, `{"error":{"code":"invalid_api_key"}}`), 1, 1),
		"reset":                 sdktest.Once(sdktest.Reset, 2, 1),
		"executed, reset":       sdktest.Once(sdktest.Lost, 2, 1),
		"a gateway's own words": sdktest.Once(sdktest.Answer(502, "<html>"), 2, 1),
	})
}

func TestDown(t *testing.T) { suite.Down(t, overloaded("Retry-After-Ms", "1"), complete, 3) }

// A stream is retried until its response begins.
func TestStream(t *testing.T) {
	server, client := suite.Start(t, overloaded(), limited())
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

// openai-go reads a file into memory before it sends it.
func TestUpload(t *testing.T) {
	content := sdktest.Random(320_000)
	server, client := suite.Start(t, limited())
	_, err := client.Files.New(t.Context(), openai.FileNewParams{
		File: sdktest.Bodies(t, content)["file"], Purpose: openai.FilePurposeBatch})
	require.NoError(t, err)
	server.Whole(t, 2, content, func(r *sdktest.Request) []byte { return r.Parts(t)[0] })
}
