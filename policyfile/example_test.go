package policyfile_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"

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
	// 2:15: default.atemptTimeout: unknown field: want preset, maxAttempts, backoff, maxRetryAfter, attemptTimeout, readAhead, maxElapsed, budget, cooldown, transient, final, unprocessed, idempotent, newIdempotencyKey, idempotencyHeader, replayBuffer, resume or resumeIdle
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

// The policies follow a file while the program runs.
func ExampleReloader() {
	dir, err := os.MkdirTemp("", "policyfile")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "retries.json")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			log.Fatal(err)
		}
	}

	write(`{"default": {"maxAttempts": 5}}`)
	reloader := &policyfile.Reloader{
		Path:      path,
		Transport: new(httpretry.RetryTransport),
		Report:    func(err error) { fmt.Println("changed; valid:", err == nil) },
	}
	// Without a usable file, the program would begin with the default policy.
	if err := reloader.Reload(); err != nil {
		log.Fatal(err)
	}

	write(`{"default": {"maxAttempts": "many"}}`) // the policies remain
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var wg sync.WaitGroup
	wg.Go(func() { _ = reloader.Run(ctx) }) // Reload has checked its fields
	stop()
	wg.Wait()
	// Output:
	// changed; valid: true
	// changed; valid: false
}

// An error has the position of each problem, such as for an editor.
func ExampleError() {
	_, err := policyfile.Parse([]byte(`{
  "default": {"maxAttempts": 0.5}
}`))
	if problem, ok := errors.AsType[*policyfile.Error](err); ok {
		fmt.Println(problem.Line, problem.Column, problem.Path)
		fmt.Println(problem.Problem)
	}
	// Output:
	// 2 30 default.maxAttempts
	// 0.5: want a whole number from -2147483648 to 2147483647
}

// Fields returns the policy of a key, with the place that each field is from.
func ExampleFile_Fields() {
	f, err := policyfile.Parse([]byte(`{
		"default": {"maxAttempts": 4},
		"policies": {"api.stripe.com": {"preset": "stripe", "attemptTimeout": "10s"}}
	}`))
	if err != nil {
		log.Fatal(err)
	}
	for _, field := range f.Fields("api.stripe.com") {
		if field.From != "" {
			fmt.Printf("%s = %s, from %s\n", field.Name, field.Value, field.From)
		}
	}
	// Output:
	// maxAttempts = 4, from default
	// attemptTimeout = "10s", from policies["api.stripe.com"]
	// CooldownKey = a function, from preset stripe
	// newIdempotencyKey = "random", from preset stripe
}

// An older program reads a file with a field of a later release.
func ExampleFile_Warnings() {
	loader := policyfile.Loader{IgnoreUnknown: true}
	f, err := loader.Parse([]byte(`{
  "default": {"maxAttempts": 4},
  "regions": ["eu"]
}`))
	if err != nil {
		log.Fatal(err)
	}
	for _, warning := range f.Warnings() {
		fmt.Println(warning)
	}
	fmt.Println(f.Policy().MaxAttempts)
	// Output:
	// 3:3: regions: unknown field, which is ignored: want $schema, version, default or policies
	// 4
}

// Lists of statuses change the preset's Classify.
func ExampleParse_statuses() {
	f, err := policyfile.Parse([]byte(`{"policies": {
		"api.openai.com": {"preset": "openai", "transient": [404], "final": [409, 500]}
	}}`))
	if err != nil {
		log.Fatal(err)
	}
	classify := f.Policies()["api.openai.com"].Classify
	for _, status := range []int{404, 409, 429, 500, 503} {
		fmt.Println(status, classify(nil, &http.Response{StatusCode: status}, nil))
	}
	// Output:
	// 404 transient
	// 409 final
	// 429 unprocessed
	// 500 final
	// 503 transient
}
