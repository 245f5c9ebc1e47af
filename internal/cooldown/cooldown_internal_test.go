package cooldown

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Nothing remains of requests that do not sleep any more, whether they were
// woken or left.
func TestSleepersAreForgotten(t *testing.T) {
	var table Table
	for i := range 100 {
		var woken, left Sleeper
		origin, key := fmt.Sprint(i/2), fmt.Sprint("key ", i)
		table.Sleep(&woken, origin, key)
		table.Sleep(&left, origin, key)
		table.Wake(key, math.MaxUint64)
		woken.Leave()
		left.Leave()
	}
	assert.Empty(t, table.sleepers.queues)
	assert.Empty(t, table.sleepers.origins)
	assert.Zero(t, table.sleepers.number.Load())
}

// Nothing remains of requests that do not wait any more.
func TestWaitersAreForgotten(t *testing.T) {
	var table Table
	now := time.Now()
	table.Begin("key", "key", now, time.Hour, 0)
	for _, isFirst := range []bool{true, false} {
		var left Waiter
		table.Join(&left, "key", now, now, now.Add(time.Hour), isFirst)
		left.Leave()
	}
	h := table.hosts.Peek("key")
	assert.Zero(t, h.firsts.Len())
	assert.Zero(t, h.waiters)
	assert.Nil(t, h.cleared)
}
