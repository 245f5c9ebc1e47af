package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry"
)

const restTime = 500 * time.Millisecond

// rests shows what the other requests to a host do while it wants to be left
// alone, by the policy's Cooldown.
func (d *demo) rests(ctx context.Context, number int) {
	d.out.title(fmt.Sprintf("%d. A 429 asks for %v: %d other requests come before that is over", number, restTime, burst))
	d.out.print("  %-34s  %8s  %10s  %9s  %8s\n", "", "requests", "too early", "succeeded", "not sent")
	var problems []error
	for _, r := range []rest{
		{"CooldownOff: retries wait", httpretry.CooldownOff, burst, burst, 0},
		{"CooldownWait: all wait", httpretry.CooldownWait, 0, burst, 0},
		{"CooldownFail: none waits", httpretry.CooldownFail, 0, 0, burst},
	} {
		problems = append(problems, d.rest(ctx, r))
		if ctx.Err() != nil {
			return
		}
	}
	d.report(ctx, errors.Join(problems...), "no retry was early, nor any request that was told to wait")
}

// rest is what is expected of one Cooldown.
type rest struct {
	name      string
	cooldown  httpretry.Cooldown
	early     int // requests that the server may see while it rests
	succeeded int
	notSent   int
}

// rest lets one request hear of the wish, and then sends the others at once.
func (d *demo) rest(ctx context.Context, want rest) error {
	path := fmt.Sprintf("/rest-%v", want.cooldown)
	var early atomic.Int64
	over := sync.OnceValue(func() time.Time { return time.Now().Add(restTime) })
	d.server.play(path, slices.Repeat(script{func(w http.ResponseWriter, r *http.Request) {
		if left := time.Until(over()); left > 0 {
			early.Add(1)
			status(429, "Retry-After-Ms", fmt.Sprint(left.Milliseconds()+1))(w, r)
		}
	}}, 1+burst*httpretry.DefaultMaxAttempts))
	client, err := d.client(nil, httpretry.Policy{Cooldown: want.cooldown, Budget: httpretry.Unlimited{}}, func(context.Context, httpretry.Event) {})
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()

	url := d.server.url + path
	if _, err := send(httpretry.WithPolicy(ctx, httpretry.Policy{MaxAttempts: 1}), client, http.MethodGet, url, nil); err != nil {
		return err
	}
	var succeeded, notSent atomic.Int64
	var wg sync.WaitGroup
	for range burst {
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
	if ctx.Err() != nil {
		return nil // cut short, there is nothing to tell
	}
	got := rest{want.name, want.cooldown, int(early.Load()) - 1, int(succeeded.Load()), int(notSent.Load())}
	d.out.print("  %-34s  %8d  %10d  %9d  %8d\n", got.name, burst, got.early, got.succeeded, got.notSent)
	if got.early <= want.early { // a slow machine may send some of them late
		got.early = want.early
	}
	if got != want {
		return fmt.Errorf("got %+v, expected %+v", got, want)
	}
	return nil
}
