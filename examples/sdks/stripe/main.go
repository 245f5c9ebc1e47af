// Stripe reads an account's balance and creates a payment with stripe-go.
// httpretry retries instead of stripe-go, and the payment is made once:
//
//	STRIPE_API_KEY=sk_test_... go run ./stripe -order 4711
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/stripe/stripe-go/v85"

	"github.com/seed421102f4/httpretry"
)

// newClient returns a client for Stripe or, if endpoint is not empty, for a
// compatible server.
func newClient(endpoint, key string, policy httpretry.Policy) (*stripe.Client, error) {
	transport, err := httpretry.New(httpretry.Config{Policy: policy})
	if err != nil {
		return nil, err
	}
	config := &stripe.BackendConfig{
		// For all attempts and waits, as in stripe-go's own client.
		HTTPClient: &http.Client{Transport: transport, Timeout: 80 * time.Second},
		// stripe-go makes up to 3 attempts if a connection breaks or a response
		// is not JSON. With 3 attempts each here, that would be 9.
		MaxNetworkRetries: stripe.Int64(0),
	}
	if endpoint != "" {
		config.URL = &endpoint // for uploads as well
	}
	return stripe.NewClient(key, stripe.WithBackends(stripe.NewBackendsWithConfig(config))), nil
}

func run(ctx context.Context, client *stripe.Client, order string, out io.Writer) error {
	balance, err := client.V1Balance.Retrieve(ctx, nil)
	if err != nil {
		return err
	}
	for _, amount := range balance.Available {
		fmt.Fprintf(out, "available: %d %s\n", amount.Amount, amount.Currency)
	}

	params := &stripe.PaymentIntentCreateParams{Amount: stripe.Int64(999), Currency: stripe.String("eur")}
	// stripe-go would make a new key for every call. A key that belongs to the
	// order also works if this program is started again.
	params.SetIdempotencyKey("order-" + order)
	intent, err := client.V1PaymentIntents.Create(ctx, params)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "payment %s of %d %s\n", intent.ID, intent.Amount, intent.Currency)
	return nil
}

func main() {
	endpoint := flag.String("url", "", "URL of a compatible server; empty means Stripe")
	order := flag.String("order", "", "number of the order to be paid")
	flag.Parse()
	if *order == "" {
		log.Fatal("-order \"\": want a number: without one, all orders would have the same key and one payment")
	}

	client, err := newClient(*endpoint, os.Getenv("STRIPE_API_KEY"), httpretry.Policy{})
	if err != nil {
		log.Fatal(err)
	}
	if err := run(context.Background(), client, *order, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
