package main

import (
	"context"
	"io"
	"os"
	"testing"

	"github.com/stripe/stripe-go/v85"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

// TestMain turns off the log of stripe-go, which logs every error.
func TestMain(m *testing.M) {
	stripe.DefaultLeveledLogger = &stripe.LeveledLogger{Level: stripe.LevelNull}
	os.Exit(m.Run())
}

func Example() {
	main()
	// Output:
	// attempt 1: POST /v1/payment_intents: 503 Service Unavailable
	// attempt 2: POST /v1/payment_intents: 200 OK
	// payment pi_1 of 999
}

// failed is a response like Stripe's.
func failed(status int, kind string, header ...string) sdktest.Fault {
	return sdktest.Answer(status, `{"error":{"type":"`+kind+`","message":"m"}}`, header...)
}

// create makes a payment with a key. Without one, it is not idempotent, but
// stripe-go makes a key for each write.
func create(key string) sdktest.Call[*stripe.Client] {
	return func(ctx context.Context, client *stripe.Client) error {
		params := payment()
		params.SetIdempotencyKey(key)
		_, err := client.V1PaymentIntents.Create(ctx, params)
		return err
	}
}

func TestStripe(t *testing.T) {
	suite := sdktest.Suite[*stripe.Client]{
		Service: sdktest.API(map[string]string{
			"POST /v1/payment_intents": `{"id":"pi_1","object":"payment_intent","amount":999}`,
			"POST /v1/files":           `{"id":"file_1","object":"file"}`,
		}),
		Client: func(_ testing.TB, s *sdktest.Server, p httpretry.Policy) (*stripe.Client, error) {
			return newClient(s.URL, httpretry.Config{Policy: p})
		},
		Check: sdktest.Has("Authorization", "Bearer sk_test_1"),
	}
	suite.Failures(t, []sdktest.Call[*stripe.Client]{create("k"), create("")}, map[string]sdktest.Row{
		"409: the first copy is still at work": sdktest.Once(failed(409, "idempotency_error"), 2, 1),
		"503":                                  sdktest.Once(failed(503, "api_error"), 2, 1),
		"executed, reset":                      sdktest.Once(sdktest.Lost, 2, 1),
		"500, replayed for its key":            sdktest.Once(failed(500, "api_error", "Stripe-Should-Retry", "false"), 1, 1),
		"402":                                  sdktest.Once(failed(402, "card_error"), 1, 1),
		"a gateway without JSON at all":        sdktest.Once(sdktest.Answer(502, "<html>"), 2, 1),
	})
	// stripe-go reads a body into memory before it sends it.
	suite.Uploads(t, 320_000, []sdktest.Fault{failed(503, "api_error")},
		func(ctx context.Context, client *stripe.Client, body io.Reader) error {
			_, err := client.V1Files.Create(ctx, &stripe.FileCreateParams{FileReader: body,
				Filename: stripe.String("evidence.pdf"), Purpose: stripe.String("dispute_evidence")})
			return err
		})
}
