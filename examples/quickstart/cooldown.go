package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry"
)

// cooldown is a test of a policy's Cooldown with many requests. It has the wait
// that the 429 asks for and the expected behavior of the request after it.
type cooldown struct {
	name  string
	value httpretry.Cooldown
	asks  time.Duration
	want  cooldownCounts
}

// cooldownCounts are the numbers of requests after the 429.
type cooldownCounts struct {
	early     int // that the server saw before the wait was over
	succeeded int
	notSent   int
}

// cooldowns shows what a policy's Cooldown does with requests that begin while
// their host is cooling down.
func (d *demo) cooldowns(ctx context.Context, number int) {
	d.out.title(
		fmt.Sprintf("%d. A 429 asks to wait: %d other requests begin before that is over",
			number, concurrent))
	d.out.print("  %-26s  %8s  %10s  %9s  %8s\n", "", "requests", "too early",
		"succeeded", "not sent")
	const short = 500 * time.Millisecond
	var problems []error
	for _, c := range []cooldown{
		{"Send: only retries wait", httpretry.CooldownSend, short,
			cooldownCounts{concurrent, concurrent, 0}},
		{"Wait: all wait", httpretry.CooldownWait, short, cooldownCounts{0, concurrent, 0}},
		// Long, so that it does not end while the requests begin. Nothing waits
		// for it.
		{"Fail: none is sent", httpretry.CooldownFail, 50 * time.Second,
			cooldownCounts{0, 0, concurrent}},
	} {
		problems = append(problems, d.cooldown(ctx, c))
		if ctx.Err() != nil {
			return
		}
	}
	d.report(ctx, errors.Join(problems...), "no retry was early, nor a request that had to wait")
}

// cooldown sends one request, which gets a 429, and then the others at once. It
// prints the numbers and returns an error if they are not as expected.
func (d *demo) cooldown(ctx context.Context, c cooldown) error {
	path := fmt.Sprintf("/cooldown-%v", c.value)
	var early atomic.Int64
	d.server.play(path, slices.Repeat(script{cooling(c.asks, &early)}, 1+concurrent*3))
	client, err := d.client(nil, httpretry.Policy{Cooldown: c.value, Budget: httpretry.Unlimited{}},
		func(context.Context, httpretry.Event) {})
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()

	url := d.server.url + path
	once := httpretry.WithoutRetries(ctx)
	if _, err := send(once, client, http.MethodGet, url, nil); err != nil {
		return err
	}
	got := sendConcurrently(ctx, client, url)
	if ctx.Err() != nil {
		return nil // interrupted
	}
	got.early = int(early.Load()) - 1 // without the first request
	d.out.print("  %-26s  %8d  %10d  %9d  %8d\n",
		c.name, concurrent, got.early, got.succeeded, got.notSent)
	// A slow machine may send some of them when the wait is over.
	got.early = max(got.early, c.want.early)
	if got != c.want {
		return fmt.Errorf("%s: got %+v, expected %+v", c.name, got, c.want)
	}
	return nil
}

// cooling responds with 429 until that long after the first request, and counts
// these responses.
func cooling(asks time.Duration, early *atomic.Int64) http.HandlerFunc {
	end := sync.OnceValue(func() time.Time { return time.Now().Add(asks) })
	return func(w http.ResponseWriter, r *http.Request) {
		if left := time.Until(end()); left > 0 {
			early.Add(1)
			status(http.StatusTooManyRequests,
				"Retry-After-Ms", strconv.FormatInt(left.Milliseconds()+1, 10))(w, r)
		}
	}
}

// sendConcurrently sends GETs at once and counts how they end.
func sendConcurrently(ctx context.Context, client *http.Client, url string) cooldownCounts {
	var succeeded, notSent atomic.Int64
	var wg sync.WaitGroup
	for range concurrent {
		wg.Go(func() {
			code, err := send(ctx, client, http.MethodGet, url, nil)
			var cooling *httpretry.CooldownError
			switch {
			case code == http.StatusOK:
				succeeded.Add(1)
			case errors.As(err, &cooling):
				notSent.Add(1)
			}
		})
	}
	wg.Wait()
	return cooldownCounts{succeeded: int(succeeded.Load()), notSent: int(notSent.Load())}
}
