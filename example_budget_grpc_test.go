package httpretry_test

import (
	"context"
	"log"
	"net/http"
	"sync"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// grpcThrottle is the retry throttling of gRPC (its proposal A6). Each server
// has tokens. A failure takes one, and a success returns tokenRatio. There are
// no retries while at most half of the tokens are left. It forgets no server, so
// it is for programs that choose their servers themselves.
type grpcThrottle struct {
	maxTokens, tokenRatio float64

	mu    sync.Mutex
	taken map[string]float64 // tokens, by origin
}

func (g *grpcThrottle) Withdraw(_ context.Context, last httpretry.AttemptResult) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.maxTokens-g.taken[last.Origin] > g.maxTokens/2
}

// Refund has nothing to give back, because a retry costs nothing until it fails.
func (g *grpcThrottle) Refund(httpretry.AttemptResult) {}

func (g *grpcThrottle) Record(ended, _ httpretry.AttemptResult) {
	g.mu.Lock()
	defer g.mu.Unlock()
	taken := g.taken[ended.Origin]
	switch {
	case ended.Succeeded():
		taken = max(taken-g.tokenRatio, 0)
	case ended.Outcome != httpretry.Final:
		taken = min(taken+1, g.maxTokens)
	}
	if g.taken == nil {
		g.taken = make(map[string]float64)
	}
	g.taken[ended.Origin] = taken
}

// A budget gets all failures, also those that no retry follows. So it can
// throttle as gRPC does.
func ExampleBudget_grpcThrottle() {
	down := unreliable(1000)
	defer down.Close()
	transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
		Budget:      &grpcThrottle{maxTokens: 10, tokenRatio: 0.1},
		MaxAttempts: 3,
		Backoff:     strategies.Constant{},
	}})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	for range 3 {
		showResult(client.Get(down.URL))
	}
	// Output:
	// {3 attempts_exhausted false}
	// {2 budget_exhausted false}
	// {1 budget_exhausted false}
}
