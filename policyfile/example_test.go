package policyfile_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policyfile"
)

func Example() {
	f, err := policyfile.Parse([]byte(`{
		"default": {"maxAttempts": 4, "attemptTimeout": "2s"},
		"policies": {
			"api.stripe.com": {"preset": "stripe", "attemptTimeout": "10s"}
		}
	}`))
	if err != nil {
		panic(err)
	}
	transport, err := httpretry.New(httpretry.Config{Policy: f.Policy(), Policies: f.Policies()})
	if err != nil {
		panic(err)
	}
	client := &http.Client{Transport: transport}
	_ = client // sends requests

	stripe := f.Policies()["api.stripe.com"]
	fmt.Println(stripe.MaxAttempts, stripe.AttemptTimeout, stripe.NewIdempotencyKey != nil)
	// Output: 4 10s true
}

func ExampleParse_errors() {
	_, err := policyfile.Parse([]byte(`{
  "default": {"atemptTimeout": "2s"},
  "policies": {
    "https://api.example.com": {"cooldown": "wait"},
    "api.example.org": {"attemptTimeout": 2}
  }
}`))
	fmt.Println(err)
	// Output:
	// 2:15: default.atemptTimeout: unknown field: want preset, maxAttempts, backoff, maxRetryAfter, attemptTimeout, maxElapsed, budget, waitOnBudget, cooldown, idempotent, newIdempotencyKey, idempotencyHeader, replayBuffer, resume or resumeIdle
	// 4:5: policies["https://api.example.com"]: has a scheme in it: want a host and, if it matters, its port, as in "example.com", "example.com:8443", "*.example.com" or "[::1]:8080"
	// 5:43: policies["api.example.org"].attemptTimeout: 2: want a duration as text with its unit, such as "500ms" or "2s"
}

// A program adds functions, which a file cannot contain, as a preset.
func ExampleLoader() {
	loader := policyfile.Loader{Presets: map[string]httpretry.Policy{
		"search": {Idempotent: func(req *http.Request) bool {
			return req.Method == http.MethodPost && req.URL.Path == "/find"
		}},
	}}
	f, err := loader.Parse([]byte(`{"policies": {"search.test": {"preset": "search", "maxAttempts": 5}}}`))
	if err != nil {
		panic(err)
	}
	for _, field := range f.Fields("search.test") {
		if field.From != "" {
			fmt.Printf("%s = %s, from %s\n", field.Name, field.Value, field.From)
		}
	}
	// Output:
	// maxAttempts = 5, from policies["search.test"]
	// idempotent = a function, from preset search
}

func ExampleFormat() {
	text, err := policyfile.Format(
		httpretry.Policy{MaxAttempts: 4},
		map[string]httpretry.Policy{"a.test": {MaxAttempts: 4, Budget: httpretry.Unlimited{}}})
	if err != nil {
		panic(err)
	}
	fmt.Print(string(text))
	// Output:
	// {
	//   "default": {
	//     "maxAttempts": 4
	//   },
	//   "policies": {
	//     "a.test": {
	//       "budget": "unlimited"
	//     }
	//   }
	// }
}

// The policies follow a file while the program runs.
func ExampleReloader() {
	transport := new(httpretry.RetryTransport)
	reloader := &policyfile.Reloader{Path: "/etc/myservice/retries.json", Transport: transport}
	// Without a usable file, the program would begin with the default policy.
	if err := reloader.Reload(); err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	go func() { _ = reloader.Run(ctx) }() // Reload has checked its fields
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
}
