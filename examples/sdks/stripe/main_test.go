package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/strategies"
)

const apiKey = "sk_test_1"

// quick is the recommended policy without waits.
func quick() httpretry.Policy {
	p := httpretry.Policy{}
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	return p
}

// TestMain turns off the log of stripe-go, which logs every error.
func TestMain(m *testing.M) {
	stripe.DefaultLeveledLogger = &stripe.LeveledLogger{Level: stripe.LevelNull}
	os.Exit(m.Run())
}

// start returns a server and a client for it.
func start(t *testing.T, p httpretry.Policy, faults ...sdktest.Fault) (*sdktest.Server, *stripe.Client) {
	t.Helper()
	server := listen(t, faults...)
	client, err := newClient(server.URL, apiKey, p)
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

// listen starts a server that supports enough of Stripe's API. At the
// end it checks that every attempt was authorized.
func listen(t *testing.T, faults ...sdktest.Fault) *sdktest.Server {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(pattern, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
	}
	answer("GET /v1/balance", `{"object":"balance","available":[{"amount":100,"currency":"eur"}]}`)
	answer("POST /v1/payment_intents", `{"id":"pi_1","object":"payment_intent","amount":999,"currency":"eur"}`)
	answer("POST /v1/files", `{"id":"file_1","object":"file"}`)
	server := sdktest.New(t, mux, faults...)
	t.Cleanup(func() {
		for _, r := range server.Requests() {
			if got := r.Header.Get("Authorization"); got != "Bearer "+apiKey {
				t.Errorf("%s %s: Authorization %q", r.Method, r.RequestURI, got)
			}
		}
	})
	return server
}

// failed is a response like Stripe's.
func failed(status int, kind string, header ...string) sdktest.Fault {
	return sdktest.Answer(status, `{"error":{"type":"`+kind+`","message":"m"}}`, header...)
}

func create(ctx context.Context, client *stripe.Client) error {
	_, err := client.V1PaymentIntents.Create(ctx, &stripe.PaymentIntentCreateParams{
		Amount: stripe.Int64(999), Currency: stripe.String("eur"),
	})
	return err
}

// keys returns the distinct keys that a server got, sorted.
func keys(server *sdktest.Server) []string {
	set := map[string]bool{}
	for _, r := range server.Requests() {
		set[r.Header.Get("Idempotency-Key")] = true
	}
	return slices.Sorted(maps.Keys(set))
}

func TestRun(t *testing.T) {
	server, client := start(t, quick(), failed(503, "api_error"))
	var out bytes.Buffer
	if err := run(t.Context(), client, "7", &out); err != nil {
		t.Fatal(err)
	}
	if want := "available: 100 eur\npayment pi_1 of 999 eur\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
	want := "GET /v1/balance \"\"\nGET /v1/balance \"1\"\nPOST /v1/payment_intents \"\"\nPOST /v1/payment_intents \"1\"\n"
	if got := server.Summary(); got != want {
		t.Errorf("the server saw\n%swant\n%s", got, want)
	}
	if got, want := keys(server), []string{"", "order-7"}; !slices.Equal(got, want) { // "" of the GETs
		t.Errorf("keys %q, want %q", got, want)
	}
}

func TestFailures(t *testing.T) {
	for name, test := range map[string]struct {
		fault sdktest.Fault
		want  int // requests; the call succeeds if there are two
	}{
		"409: the first copy is still at work": {failed(409, "idempotency_error"), 2},
		"429":                                  {failed(429, "invalid_request_error", "Retry-After", "0"), 2},
		"503":                                  {failed(503, "api_error"), 2},
		"reset":                                {sdktest.Reset(), 2},
		"lost":                                 {sdktest.Lost(), 2}, // the key prevents a second payment
		"500, replayed for its key":            {failed(500, "api_error", "Stripe-Should-Retry", "false"), 1},
		"409 that will not go away":            {failed(409, "api_error", "Stripe-Should-Retry", "false"), 1},
		"400, but Stripe says so":              {failed(400, "invalid_request_error", "Stripe-Should-Retry", "true"), 2},
		"402":                                  {failed(402, "card_error"), 1},
		"429 that asks for an hour":            {failed(429, "invalid_request_error", "Retry-After", "3600"), 1},
		"a gateway without JSON at all":        {sdktest.Answer(502, "<html>"), 2},
	} {
		t.Run(name, func(t *testing.T) {
			server, client := start(t, quick(), test.fault)
			err := create(t.Context(), client)
			if got := len(server.Requests()); got != test.want || (err == nil) != (test.want == 2) {
				t.Errorf("%d requests, want %d; error %v", got, test.want, err)
			}
			if got := keys(server); len(got) != 1 || got[0] == "" {
				t.Errorf("keys %q, want one", got)
			}
			for _, r := range server.Requests() {
				if string(r.Content) != "amount=999&currency=eur" {
					t.Errorf("the server got %q", r.Content)
				}
			}
		})
	}
}

// Only the key makes a write idempotent. With an empty key, a request whose
// response is lost is not retried.
func TestLostAnswerIsNotDoubled(t *testing.T) {
	server, client := start(t, quick(), sdktest.Lost())
	params := &stripe.PaymentIntentCreateParams{Amount: stripe.Int64(999), Currency: stripe.String("eur")}
	params.SetIdempotencyKey("")
	_, err := client.V1PaymentIntents.Create(t.Context(), params)
	if got := server.Executed("POST"); err == nil || got != 1 {
		t.Errorf("executed %d times, want 1; error %v, want one", got, err)
	}
}

// stripe-go reads a file into memory before it sends it.
func TestUpload(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	file := sdktest.File(t, "evidence.pdf", content)
	server, client := start(t, quick(), failed(503, "api_error"))
	_, err := client.V1Files.Create(t.Context(), &stripe.FileCreateParams{
		FileReader: file, Filename: stripe.String("evidence.pdf"), Purpose: stripe.String("dispute_evidence"),
	})
	if requests := server.Requests(); err != nil || len(requests) != 2 {
		t.Fatalf("%d requests, want 2; error %v", len(requests), err)
	}
	for _, r := range server.Requests() {
		if got := r.Part(t, "file"); sha256.Sum256(got) != sha256.Sum256(content) {
			t.Errorf("the server got %d bytes, which are not the file's %d", len(got), len(content))
		}
	}
}

// Without MaxNetworkRetries turned off, attempts multiply. Errors in JSON are
// an exception, since stripe-go itself retries none of them but lock_timeout.
func TestRetriesMultiply(t *testing.T) {
	p := quick()
	p.Budget = httpretry.Unlimited{} // the default would end this earlier
	for name, test := range map[string]struct {
		fault sdktest.Fault
		want  int // requests without the line
	}{
		"reset":      {sdktest.Reset(), 9},
		"502":        {sdktest.Answer(502, "<html>"), 9},
		"503 (JSON)": {failed(503, "api_error"), 3},
	} {
		t.Run(name, func(t *testing.T) {
			down := slices.Repeat([]sdktest.Fault{test.fault}, 20)
			server, client := start(t, p, down...)
			if err := create(t.Context(), client); err == nil || len(server.Requests()) != 3 {
				t.Errorf("%d requests, want 3; error %v, want one", len(server.Requests()), err)
			}

			server = listen(t, down...)
			client = withRetries(t, server.URL, p)
			if err := create(t.Context(), client); err == nil || len(server.Requests()) != test.want {
				t.Errorf("without the line: %d requests, want %d; error %v, want one", len(server.Requests()), test.want, err)
			}
		})
	}
}

// withRetries returns newClient's client without MaxNetworkRetries, and without
// stripe-go's waits.
func withRetries(t *testing.T, endpoint string, p httpretry.Policy) *stripe.Client {
	t.Helper()
	transport, err := httpretry.New(httpretry.Config{Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	backends := stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		HTTPClient: &http.Client{Transport: transport}, URL: &endpoint,
	})
	backends.API.(*stripe.BackendImplementation).SetNetworkRetriesSleep(false)
	return stripe.NewClient(apiKey, stripe.WithBackends(backends))
}
