package cooldown

import (
	"fmt"
	"math"
	"testing"

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
