// Stripe makes a payment with stripe-go, once, although its first request
// fails. httpretry retries instead of stripe-go.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/stripe/stripe-go/v85"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/flaky"
)

// newClient returns a client for url. Without it, stripe-go uses Stripe's.
func newClient(url string, config httpretry.Config) (*stripe.Client, error) {
	transport, err := httpretry.New(config)
	if err != nil {
		return nil, err
	}
	backends := stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		URL: &url, // for uploads as well
		// For all attempts and waits, as in stripe-go's own client.
		HTTPClient: &http.Client{Transport: transport, Timeout: 80 * time.Second},
		// stripe-go makes up to 3 attempts if a connection breaks or a response
		// is not JSON. With 3 attempts each here, that would be 9.
		MaxNetworkRetries: stripe.Int64(0),
	})
	return stripe.NewClient("sk_test_1", stripe.WithBackends(backends)), nil
}

func main() {
	server := flaky.Server(`{"id":"pi_1","object":"payment_intent","amount":999}`)
	defer server.Close()
	client, err := newClient(server.URL, httpretry.Config{Observe: flaky.Print})
	if err != nil {
		log.Fatal(err)
	}
	params := payment()
	// stripe-go would make a new key for each call. A key that belongs to the
	// order also works if a program is started again.
	params.SetIdempotencyKey("order-4711")
	intent, err := client.V1PaymentIntents.Create(context.Background(), params)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("payment %s of %d\n", intent.ID, intent.Amount)
}

func payment() *stripe.PaymentIntentCreateParams {
	return &stripe.PaymentIntentCreateParams{Amount: stripe.Int64(999), Currency: stripe.String("eur")}
}
