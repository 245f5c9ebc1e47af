package sim

import "time"

// maxCooldown is the longest cool-down that one answer can begin.
const maxCooldown = time.Hour

// A cooldown is one process's state of the server's cool-down. The library
// keeps the same in internal/cooldown, but draws from a source of random
// numbers that cannot be seeded.
type cooldown struct {
	begun, until time.Duration
	spread       time.Duration
	generation   uint64  // how often the server has asked for a pause
	active       bool    // it has asked since it was last cleared
	sleepers     []int32 // requests that wait for the end of the cool-down
}

// begin notes that the server asked for a pause.
func (c *cooldown) begin(now, length, spread time.Duration) {
	until := now + min(length, maxCooldown)
	c.generation++
	if c.until <= now {
		c.begun = now
		c.sleepers = nil // all of them are awake
	}
	if until > c.until {
		c.until, c.spread = until, spread
	}
	c.active = true
}

// clear ends the cool-down after the success of a request that was sent in the
// given generation, and returns the requests that wait no longer.
func (c *cooldown) clear(generation uint64) []int32 {
	if !c.active || generation == 0 || c.generation > generation {
		return nil
	}
	c.until, c.active = 0, false
	woken := c.sleepers
	c.sleepers = nil
	return woken
}

// spreadFor returns the range of the jitter that is added to a wait that the
// server asked for. A wait of whole seconds comes in a header that counts
// seconds.
func spreadFor(asked time.Duration) time.Duration {
	if asked <= 0 {
		return 0
	}
	spread := asked / 4
	if asked%time.Second == 0 {
		spread = max(spread, time.Second)
	}
	return min(spread, 30*time.Second)
}
