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

func ExampleConstant() {
	fmt.Println(strategies.Take(strategies.Constant{Wait: time.Second}, 3))
	fmt.Println(strategies.Take(strategies.Constant{}, 3))
	// Output:
	// [1s 1s 1s]
	// [0s 0s 0s]
}

func ExampleExponential() {
	s := strategies.Exponential{Base: time.Second, Factor: 3, Max: 20 * time.Second}
	fmt.Println(strategies.Take(s, 5))
	// Output:
	// [1s 3s 9s 20s 20s]
}

// printMillis prints waits in milliseconds.
func printMillis(waits []time.Duration) {
	for _, wait := range waits {
		fmt.Print(wait.Milliseconds(), " ")
	}
	fmt.Println("ms")
}

// The waits are below 1, 2, 4, 8 and 8 seconds.
func ExampleFullJitter() {
	s := strategies.FullJitter{Base: time.Second, Max: 8 * time.Second}
	s.Rand = strategies.Seeded(7) // for the output below; leave it nil in production
	printMillis(strategies.Take(s, 5))
	// Output:
	// 590 1021 3144 4906 3284 ms
}

// The waits are in the upper halves of 1, 2, 4, 8 and 8 seconds.
func ExampleEqualJitter() {
	s := strategies.EqualJitter{Base: time.Second, Max: 8 * time.Second}
	s.Rand = strategies.Seeded(7) // for the output below; leave it nil in production
	printMillis(strategies.Take(s, 5))
	// Output:
	// 795 1510 3572 6453 5642 ms
}

// A wait is at least Base, and at most three times as long as the one before.
func ExampleDecorrelated() {
	s := strategies.Decorrelated{Base: time.Second, Max: 8 * time.Second}
	s.Rand = strategies.Seeded(7) // for the output below; leave it nil in production
	printMillis(strategies.Take(s, 5))
	// Output:
	// 2181 3831 6503 5293 3874 ms
}

// Max cuts waits, so clients that failed together may wait equally long.
func ExampleAWSDecorrelated() {
	s := strategies.AWSDecorrelated{Base: time.Second, Max: 5 * time.Second}
	s.Rand = strategies.Seeded(7) // for the output below; leave it nil in production
	printMillis(strategies.Take(s, 5))
	// Output:
	// 2181 3831 5000 5000 5000 ms
}

// Three clients that failed at the same time wait for different times.
func ExampleDecorrelatedV2() {
	random := strategies.Seeded(7) // for the output below; leave Rand nil in production
	for range 3 {
		s := strategies.DecorrelatedV2{Median: time.Second, Rand: random}
		printMillis(strategies.Take(s, 4))
	}
	// Output:
	// 980 1024 2909 3818 ms
	// 813 590 3573 5886 ms
	// 1008 1142 2368 5444 ms
}

// Jitter makes the waits of any strategy random, and none of them longer.
func ExampleJitter() {
	s := strategies.Jitter{Of: strategies.Linear{Base: time.Second}, Fraction: 0.2}
	s.Rand = strategies.Seeded(7) // for the output below; leave it nil in production
	printMillis(strategies.Take(s, 4))
	// Output:
	// 918 1804 2871 3690 ms
}

// A strategy from a flag or a file is text.
func ExampleParse() {
	s, err := strategies.Parse("Capped Max=2s Of=Exponential Base=300ms")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(strategies.Take(s, 5))

	_, err = strategies.Parse("Exponential Base=300 Limit=2s")
	fmt.Println(err)
	// Output:
	// [300ms 600ms 1.2s 2s 2s]
	// Exponential.Base: "300": want a duration with its unit, such as 100ms or 2s
	// Exponential: "Limit=2s": want Base=, Factor=, Max=
}

func ExampleFormat() {
	text, err := strategies.Format(strategies.FullJitter{Base: time.Second, Max: time.Minute})
	fmt.Println(text, err)
	// Output:
	// FullJitter Base=1s Max=1m0s <nil>
}

// doubled is a strategy of a program's own.
type doubled struct{ of strategies.Strategy }

func (d doubled) Start() strategies.Sequence {
	next := d.of.Start()
	return func() time.Duration { return 2 * next() }
}

// Any type with a Start method is a strategy.
func ExampleStrategy() {
	fmt.Println(strategies.Take(doubled{strategies.Linear{Base: time.Second}}, 4))
	// Output:
	// [2s 4s 6s 8s]
}

func ExampleLinear() {
	fmt.Println(strategies.Take(strategies.Linear{Base: 100 * time.Millisecond}, 4))
	fmt.Println(strategies.Take(strategies.Linear{Base: 100 * time.Millisecond, Factor: 0.5}, 4))
	// Output:
	// [100ms 200ms 300ms 400ms]
	// [100ms 150ms 200ms 250ms]
}

func ExampleSeeded() {
	for range 2 { // the second client waits as long as the first one
		s := strategies.FullJitter{Base: time.Second, Rand: strategies.Seeded(1)}
		printMillis(strategies.Take(s, 4))
	}
	// Output:
	// 685 1432 23 2779 ms
	// 685 1432 23 2779 ms
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
	printMillis(strategies.Take(s, 4))
	// Output:
	// 1074 5432 16046 18779 ms
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
	printMillis(strategies.Take(s, 5))
	// Output:
	// 685 1432 23 2779 3924 ms
}

func ExampleValidate() {
	s := strategies.Capped{Of: strategies.FullJitter{Base: time.Second, Factor: 0.5, Max: 10}}
	fmt.Println(strategies.Validate(s))
	// Output:
	// Capped.Of: FullJitter.Factor: 0.5: want a finite number of at least 1, or 0 for the default (2)
	// Capped.Of: FullJitter.Max: 10ns: want at least 1ms, or 0 for the default (30s)
}
