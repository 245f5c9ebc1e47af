package strategies_test

import (
	"fmt"
	"time"

	"github.com/seed421102f4/httpretry/strategies"
)

func ExampleTake() {
	fmt.Println(strategies.Take(strategies.Constant{Wait: 250 * time.Millisecond}, 3))
	fmt.Println(strategies.Take(strategies.Exponential{Max: time.Second}, 6))
	// Output:
	// [250ms 250ms 250ms]
	// [100ms 200ms 400ms 800ms 1s 1s]
}

func ExampleLinear() {
	fmt.Println(strategies.Take(strategies.Linear{Base: 100 * time.Millisecond}, 4))
	fmt.Println(strategies.Take(strategies.Linear{Base: 100 * time.Millisecond, Factor: 0.5}, 4))
	// Output:
	// [100ms 200ms 300ms 400ms]
	// [100ms 150ms 200ms 250ms]
}

func ExampleSeeded() {
	s := strategies.DecorrelatedV2{Median: time.Second, Rand: strategies.Seeded(1)}
	for _, wait := range strategies.Take(s, 4) {
		fmt.Println(wait.Round(time.Millisecond))
	}
	// Output:
	// 1.068s
	// 1.254s
	// 526ms
	// 4.412s
}

func ExampleFunc() {
	fibonacci := strategies.Func(func(retry int) time.Duration {
		a, b := time.Second, time.Second
		for range min(retry, 40) {
			a, b = b, a+b
		}
		return a
	})
	s := strategies.Capped{Of: fibonacci, Max: 6 * time.Second}
	fmt.Println(strategies.Take(s, 7))
	// Output:
	// [1s 1s 2s 3s 5s 6s 6s]
}

func ExampleFastFirst() {
	s := strategies.FastFirst{Of: strategies.Exponential{Base: time.Second}}
	fmt.Println(strategies.Take(s, 4))
	// Output:
	// [0s 1s 2s 4s]
}

// Spread adds jitter to a fixed schedule, here as much as gRPC does.
func ExampleSpread() {
	steps := []time.Duration{time.Second, 5 * time.Second, 20 * time.Second}
	s := strategies.Spread{
		Of: strategies.Func(
			func(retry int) time.Duration { return steps[min(retry, len(steps)-1)] }),
		Fraction: 0.2,
		Rand:     strategies.Seeded(1), // for the output below; leave it nil in production
	}
	for _, wait := range strategies.Take(s, 4) {
		fmt.Println(wait.Round(time.Millisecond))
	}
	// Output:
	// 1.074s
	// 5.433s
	// 16.047s
	// 18.779s
}

// Capped around Jitter computes the waits of httpx-retries, which draws the
// jitter first and cuts the result.
func ExampleCapped() {
	s := strategies.Capped{
		Of: strategies.Jitter{
			Of:   strategies.Exponential{Base: time.Second, Max: 24 * time.Hour},
			Rand: strategies.Seeded(1),
		},
		Max: 5 * time.Second,
	}
	for _, wait := range strategies.Take(s, 5) {
		fmt.Println(wait.Round(time.Millisecond))
	}
	// Output:
	// 686ms
	// 1.433s
	// 23ms
	// 2.779s
	// 3.925s
}

func ExampleValidate() {
	s := strategies.Capped{Of: strategies.FullJitter{Base: time.Second, Factor: 0.5, Max: 10}}
	fmt.Println(strategies.Validate(s))
	// Output:
	// Capped.Of: FullJitter.Factor: 0.5: want a finite number of at least 1, or 0 for the default (2)
	// Capped.Of: FullJitter.Max: 10ns: want at least Base (1s), or 0 for the default (30s)
}
