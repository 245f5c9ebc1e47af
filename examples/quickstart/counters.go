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

// counters counts requests by how they ended. It is safe for concurrent use.
type counters struct {
	mu        sync.Mutex
	requests  int
	attempts  int
	succeeded map[int]int              // by the number of attempts
	failed    map[httpretry.Reason]int // the others
}

// observe counts an event. It is called by Config.Observe.
//
// Each request ends in exactly one event with a Reason, whose Attempt is the
// number of attempts. No other event needs to be counted.
func (c *counters) observe(_ context.Context, e httpretry.Event) {
	if e.Reason == httpretry.ReasonNone {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	c.attempts += e.Attempt
	if e.Reason == httpretry.ReasonSuccess {
		if c.succeeded == nil {
			c.succeeded = make(map[int]int)
		}
		c.succeeded[e.Attempt]++
		return
	}
	if c.failed == nil {
		c.failed = make(map[httpretry.Reason]int)
	}
	c.failed[e.Reason]++
}

// retries returns the number of attempts that were not first attempts.
func (c *counters) retries() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attempts - c.requests
}

// successes returns the number of requests that succeeded.
func (c *counters) successes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	total := 0
	for _, n := range c.succeeded {
		total += n
	}
	return total
}

// summary prints the counters.
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
	s.print(
		"  failed     %5d%s\n", c.requests-succeeded,
		list(c.failed, func(r httpretry.Reason, n int) string {
			return fmt.Sprintf("%v: %d", r, n)
		}))
}

// hints prints the hint of each reason that ended a request without success.
func (s *screen) hints(c *counters) {
	c.mu.Lock()
	defer c.mu.Unlock()
	printed := false
	for _, reason := range slices.Sorted(maps.Keys(c.failed)) {
		hint := reason.Hint()
		if hint == "" {
			continue
		}
		if !printed {
			s.title("Why requests were not retried, and how to allow it")
			printed = true
		}
		s.print("  %s:\n", reason)
		for _, line := range wrap(hint, hintWidth) {
			s.print("    %s\n", line)
		}
	}
}

// list formats the entries of a count in the order of their keys. Lines after
// the first are indented.
func list[K int | httpretry.Reason](counts map[K]int, entry func(K, int) string) string {
	const perLine, indent = 2, "\n                    "
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
