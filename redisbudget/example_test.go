package redisbudget_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/redisbudget"
	"github.com/seed421102f4/httpretry/strategies"
)

// A hundred processes send one request each to a server that is down. Here they
// are functions, and Redis is a miniredis.
func Example() {
	attempts := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		attempts++
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	shared, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer shared.Close()

	process := func() error {
		client := redis.NewClient(&redis.Options{Addr: shared.Addr()})
		defer client.Close()
		budget, err := redisbudget.New(redisbudget.Config{Client: client, Timeout: 4 * time.Second})
		if err != nil {
			return err
		}
		defer budget.Close()
		transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
			Budget:  budget,
			Backoff: strategies.Constant{Wait: time.Millisecond},
		}})
		if err != nil {
			return err
		}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport}).Get(server.URL)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	for range 100 {
		if err := process(); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("attempts:", attempts)
	// Output: attempts: 105
}

// The metrics of a budget show how often Redis decides. The server here is a
// miniredis.
func ExampleNew() {
	shared, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer shared.Close()
	client := redis.NewClient(&redis.Options{Addr: shared.Addr()})
	defer client.Close()

	budget, err := redisbudget.New(redisbudget.Config{
		Client:    client,
		Namespace: "shop", // all processes with this namespace share the budget
		Burst:     2,
		Timeout:   4 * time.Second,
		Observe: func(_ context.Context, d redisbudget.Decision) {
			fmt.Println("allowed:", d.Allowed, "by Redis:", d.Shared)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer budget.Close()

	for range 3 {
		budget.Withdraw(context.Background(), httpretry.AttemptResult{Origin: "https://api.example.com"})
	}
	// Output:
	// allowed: true by Redis: true
	// allowed: true by Redis: true
	// allowed: false by Redis: true
}
