package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/redisbudget"
)

// success and failure are of first attempts.
var (
	success = httpretry.AttemptResult{Origin: target, Number: 1, Status: http.StatusOK}
	failure = httpretry.AttemptResult{
		Origin: target, Number: 1, Status: http.StatusServiceUnavailable, Outcome: httpretry.Transient}
)

// measureLatency prints the times of a recorded success and of a withdrawal.
func measureLatency(out io.Writer, client redis.UniversalClient) error {
	shared, err := newBudget(client, redisbudget.Config{Timeout: patient}, nil)
	if err != nil {
		return err
	}
	successes := func(b httpretry.Budget) testing.BenchmarkResult {
		return testing.Benchmark(func(tb *testing.B) {
			tb.ReportAllocs()
			for tb.Loop() {
				b.Record(success, httpretry.AttemptResult{})
			}
		})
	}
	local, both := successes(new(httpretry.HostBudget)), successes(shared)
	fmt.Fprintf(out, "success: %d ns, %d allocs (HostBudget: %d ns, %d allocs)\n",
		both.NsPerOp(), both.AllocsPerOp(), local.NsPerOp(), local.AllocsPerOp())
	if err := shared.Close(); err != nil {
		return err
	}
	for _, lease := range []int{1, 8} {
		if err := measureWithdrawals(out, client, lease); err != nil {
			return err
		}
	}
	return nil
}

func measureWithdrawals(out io.Writer, client redis.UniversalClient, lease int) error {
	var c counts
	b, err := newBudget(client, redisbudget.Config{Ratio: 1, Lease: lease, Timeout: patient}, &c)
	if err != nil {
		return err
	}
	// Enough for all withdrawals, so that none is refused.
	for range 100_000 {
		b.Record(success, httpretry.AttemptResult{})
	}
	time.Sleep(time.Second)
	const n = 10_000
	var times []time.Duration
	for range n {
		began := time.Now()
		b.Withdraw(context.Background(), failure)
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	fmt.Fprintf(out, "withdrawal, Lease %d: p50 %v, p99 %v, %d of %d decided by the local budget\n",
		lease, times[n/2], times[n*99/100], c.local, n)
	return b.Close()
}

// measureCommands prints how many commands one process sends that makes a
// thousand requests a second to one host.
func measureCommands(out io.Writer, client *redis.Client) error {
	for _, failures := range []float64{0, 0.01, 0.1, 0.3, 1} {
		const n = 5000
		var c counts
		b, err := newBudget(client, redisbudget.Config{Timeout: patient}, &c)
		if err != nil {
			return err
		}
		before, err := scripts(client)
		if err != nil {
			return err
		}
		ticker := time.NewTicker(time.Millisecond)
		for range n {
			<-ticker.C
			request(b, failures)
		}
		ticker.Stop()
		if err := b.Close(); err != nil {
			return err
		}
		after, err := scripts(client)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "commands for 1,000 requests, %v %% fail: %.0f, with %d withdrawals\n",
			100*failures, float64(after-before)*1000/n, (c.shared+c.local)*1000/n)
		if err := client.FlushDB(context.Background()).Err(); err != nil {
			return err
		}
	}
	return nil
}

// request calls b as a transport does for a request with up to two retries.
func request(b *redisbudget.Budget, failures float64) {
	var charged httpretry.AttemptResult
	for attempt := 1; ; attempt++ {
		ended := success
		if rand.Float64() < failures {
			ended = failure
		}
		ended.Number = attempt
		b.Record(ended, charged)
		if ended.Succeeded() || attempt == 3 || !b.Withdraw(context.Background(), ended) {
			return
		}
		charged = ended
	}
}

var calls = regexp.MustCompile(`cmdstat_(?:eval|evalsha):calls=(\d+)`)

// scripts returns how many scripts the server has executed.
func scripts(client *redis.Client) (n int, err error) {
	info, err := client.Info(context.Background(), "commandstats").Result()
	for _, m := range calls.FindAllStringSubmatch(info, -1) {
		count, _ := strconv.Atoi(m[1]) // it is a number
		n += count
	}
	return n, err
}
