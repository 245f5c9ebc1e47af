// Openai looks up a model and sends it a question with openai-go. httpretry
// retries instead of openai-go:
//
//	OPENAI_API_KEY=sk-... go run ./openai -ask "What is a retry budget?"
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
)

// newClient returns a client for OpenAI or, if endpoint is not empty, for a
// compatible server.
func newClient(endpoint, key string, policy httpretry.Policy) (openai.Client, error) {
	transport, err := httpretry.New(httpretry.Config{
		Policy: policy,
		// openai-go sets this header to 0. The transport counts in it.
		AttemptHeader: "X-Stainless-Retry-Count",
	})
	if err != nil {
		return openai.Client{}, err
	}
	options := []option.RequestOption{
		option.WithAPIKey(key),
		option.WithHTTPClient(&http.Client{Transport: transport}),
		// openai-go makes up to 3 attempts, for every POST. With 3 attempts
		// each here, that would be 9.
		option.WithMaxRetries(0),
	}
	if endpoint != "" {
		options = append(options, option.WithBaseURL(endpoint))
	}
	return openai.NewClient(options...), nil
}

func run(ctx context.Context, client openai.Client, model, question string, out io.Writer) error {
	known, err := client.Models.Get(ctx, model)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s is by %s\n", known.ID, known.OwnedBy)

	completion, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
		Model:    known.ID,
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(question)},
	})
	if err != nil {
		return err
	}
	if len(completion.Choices) == 0 {
		return errors.New("no answer")
	}
	fmt.Fprintf(out, "it says: %s\n", completion.Choices[0].Message.Content)
	return nil
}

func main() {
	endpoint := flag.String("url", "", "base URL of a compatible server; empty means OpenAI")
	model := flag.String("model", "gpt-4o-mini", "name of the model")
	question := flag.String("ask", "Say hello.", "the question")
	flag.Parse()

	client, err := newClient(*endpoint, os.Getenv("OPENAI_API_KEY"), policies.OpenAI())
	if err != nil {
		log.Fatal(err)
	}
	if err := run(context.Background(), client, *model, *question, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
