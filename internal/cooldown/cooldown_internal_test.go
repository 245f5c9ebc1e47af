package cooldown

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Nothing remains of requests that do not wait any more.
func TestWaitersAreForgotten(t *testing.T) {
	var table Table
	now := time.Now()
	table.Begin("key", "key", now, time.Hour, 0)
	var first, second Waiter
	table.Join(&first, "key", now)
	table.Join(&second, "key", now)
	first.Leave()
	assert.NotNil(t, table.hosts.Peek("key").cleared)
	second.Leave()
	h := table.hosts.Peek("key")
	assert.Zero(t, h.waiters)
	assert.Nil(t, h.cleared)
}
