package main

import (
	"context"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

// TestMain turns off the log of stripe-go, which logs every error.
func TestMain(m *testing.M) {
	stripe.DefaultLeveledLogger = &stripe.LeveledLogger{Level: stripe.LevelNull}
	os.Exit(m.Run())
}

var suite = sdktest.Suite[*stripe.Client]{
	Service: sdktest.API(map[string]string{
		"GET /v1/balance":          `{"object":"balance","available":[{"amount":100,"currency":"eur"}]}`,
		"POST /v1/payment_intents": `{"id":"pi_1","object":"payment_intent","amount":999,"currency":"eur"}`,
		"POST /v1/files":           `{"id":"file_1","object":"file"}`,
	}),
	Client: func(_ testing.TB, s *sdktest.Server, p httpretry.Policy) (*stripe.Client, error) {
		return newClient(s.URL, "sk_test_1", p)
	},
	Check: sdktest.Has("Authorization", "Bearer sk_test_1"),
}

// failed is a response like Stripe's.
func failed(status int, kind string, header ...string) sdktest.Fault {
	return sdktest.Answer(status, `{"error":{"type":"`+kind+`","message":"m"}}`, header...)
}

func payment() *stripe.PaymentIntentCreateParams {
	return &stripe.PaymentIntentCreateParams{Amount: stripe.Int64(999), Currency: stripe.String("eur")}
}

func create(ctx context.Context, client *stripe.Client) error {
	_, err := client.V1PaymentIntents.Create(ctx, payment())
	return err
}

// createWithoutKey is not idempotent. stripe-go makes a key for other writes.
func createWithoutKey(ctx context.Context, client *stripe.Client) error {
	params := payment()
	params.SetIdempotencyKey("")
	_, err := client.V1PaymentIntents.Create(ctx, params)
	return err
}

func TestRun(t *testing.T) {
	second := suite.Run(t, failed(503, "api_error"), "available: 100 eur\npayment pi_1 of 999 eur\n",
		func(ctx context.Context, client *stripe.Client, out io.Writer) error {
			return run(ctx, client, "7", out)
		})
	assert.Equal(t, "order-7", second.Header.Get("Idempotency-Key"))
}

func TestFailures(t *testing.T) {
	suite.Failures(t, []sdktest.Call[*stripe.Client]{create, createWithoutKey}, map[string]sdktest.Row{
		"409: the first copy is still at work": sdktest.Once(failed(409, "idempotency_error"), 2, 1),
		"429":                                  sdktest.Once(failed(429, "invalid_request_error", "Retry-After", "0"), 2, 1),
		"503":                                  sdktest.Once(failed(503, "api_error"), 2, 1),
		"reset":                                sdktest.Once(sdktest.Reset, 2, 1),
		"executed, reset":                      sdktest.Once(sdktest.Lost, 2, 1),
		"500, replayed for its key":            sdktest.Once(failed(500, "api_error", "Stripe-Should-Retry", "false"), 1, 1),
		"409 that will not go away":            sdktest.Once(failed(409, "api_error", "Stripe-Should-Retry", "false"), 1, 1),
		"400, but Stripe says so":              sdktest.Once(failed(400, "invalid_request_error", "Stripe-Should-Retry", "true"), 2, 1),
		"402":                                  sdktest.Once(failed(402, "card_error"), 1, 1),
		"429 that asks for an hour":            sdktest.Once(failed(429, "invalid_request_error", "Retry-After", "3600"), 1, 1),
		"a gateway without JSON at all":        sdktest.Once(sdktest.Answer(502, "<html>"), 2, 1),
	})
}

func TestDown(t *testing.T) {
	suite.Down(t, sdktest.Answer(502, "<html>"), create, 3)
	suite.Down(t, sdktest.Reset, create, 3)
}

// stripe-go reads a file into memory before it sends it.
func TestUpload(t *testing.T) {
	content := sdktest.Random(320_000)
	server, client := suite.Start(t, failed(503, "api_error"))
	_, err := client.V1Files.Create(t.Context(), &stripe.FileCreateParams{
		FileReader: sdktest.Bodies(t, content)["file"], Filename: stripe.String("evidence.pdf"),
		Purpose: stripe.String("dispute_evidence"),
	})
	require.NoError(t, err)
	server.Whole(t, 2, content, func(r *sdktest.Request) []byte { return r.Parts(t)[1] })
}
