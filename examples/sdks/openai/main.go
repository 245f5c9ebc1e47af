// Openai asks a model a question with openai-go. The first request fails.
// httpretry retries instead of openai-go.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/flaky"
	"github.com/seed421102f4/httpretry/policies"
)

// newClient returns a client for url. Without it, openai-go uses OpenAI's.
func newClient(url string, config httpretry.Config) (openai.Client, error) {
	// openai-go sets this header to 0. The transport counts in it.
	config.AttemptHeader = "X-Stainless-Retry-Count"
	transport, err := httpretry.New(config)
	if err != nil {
		return openai.Client{}, err
	}
	return openai.NewClient(
		option.WithBaseURL(url),
		option.WithAPIKey("sk-test"),
		option.WithHTTPClient(&http.Client{Transport: transport}),
		// openai-go makes up to 3 attempts, for every POST. With 3 attempts
		// each here, that would be 9.
		option.WithMaxRetries(0),
	), nil
}

func question() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: "m", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("?")},
	}
}

func main() {
	server := flaky.Server(`{"choices":[{"message":{"content":"hello"}}]}`)
	defer server.Close()
	client, err := newClient(server.URL+"/v1/",
		httpretry.Config{Policy: policies.OpenAI(), Observe: flaky.Print})
	if err != nil {
		log.Fatal(err)
	}
	completion, err := client.Chat.Completions.New(context.Background(), question())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("it says:", completion.Choices[0].Message.Content)
}
