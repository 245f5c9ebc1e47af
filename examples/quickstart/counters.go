package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/seed421102f4/httpretry"
)

// counters counts requests by how they ended.
type counters struct {
	mu        sync.Mutex
	requests  int
	attempts  int
	succeeded map[int]int              // by the number of attempts it took
	gaveUp    map[httpretry.Reason]int // the others
}

// observe counts an event. It is meant to be called by Config.Observe.
//
// A request that was sent ends in exactly one event with a Reason, whose
// Attempt is the number of attempts that were made. So this event is all that
// has to be counted; counting every event would count one attempt too many
// for a request that is canceled during a wait, which reports that as well.
func (c *counters) observe(_ context.Context, e httpretry.Event) {
	if e.Reason == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	c.attempts += e.Attempt
	if succeeded(e) {
		if c.succeeded == nil {
			c.succeeded = make(map[int]int)
		}
		c.succeeded[e.Attempt]++
		return
	}
	if c.gaveUp == nil {
		c.gaveUp = make(map[httpretry.Reason]int)
	}
	c.gaveUp[e.Reason]++
}

// retries returns how many attempts were not the first of their request.
func (c *counters) retries() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attempts - c.requests
}

// successes returns how many requests succeeded.
func (c *counters) successes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	total := 0
	for _, n := range c.succeeded {
		total += n
	}
	return total
}

// summary prints what was counted.
func (s *screen) summary(c *counters) {
	succeeded, retries := c.successes(), c.retries()
	c.mu.Lock()
	defer c.mu.Unlock()

	s.title("Summary")
	s.print("  requests   %5d\n", c.requests)
	s.print("  attempts   %5d\n", c.attempts)
	s.print("  retries    %5d\n", retries)
	s.print("  succeeded  %5d%s\n", succeeded, list(c.succeeded, func(attempts, n int) string {
		return fmt.Sprintf("on attempt %d: %d", attempts, n)
	}))
	s.print("  given up   %5d%s\n", c.requests-succeeded, list(c.gaveUp, func(r httpretry.Reason, n int) string {
		return fmt.Sprintf("%v: %d", r, n)
	}))
}

// list returns the entries of a count in the order of their keys, in lines
// that continue below the first.
func list[K int | httpretry.Reason](counts map[K]int, entry func(K, int) string) string {
	const perLine, indent = 3, "\n                    "
	var b strings.Builder
	for i, key := range slices.Sorted(maps.Keys(counts)) {
		switch {
		case i == 0:
			b.WriteString("  ")
		case i%perLine == 0:
			b.WriteString("," + indent)
		default:
			b.WriteString(", ")
		}
		b.WriteString(entry(key, counts[key]))
	}
	return b.String()
}
