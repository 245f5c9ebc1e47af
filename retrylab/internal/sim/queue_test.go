package sim

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

// Events come out in the order of time, and of their making.
func TestQueueOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var q queue
	var got, want []event
	add := func() {
		// Few different times, so that many are equal.
		q.push(time.Duration(r.IntN(50)), int32(r.IntN(9)), 0)
	}
	for range 300 {
		add()
	}
	want = slices.Clone(q.events)
	slices.SortFunc(want, func(a, b event) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	for len(q.events) > 0 {
		at, ok := q.next()
		require.True(t, ok)
		e := q.pop()
		assert.Equal(t, at, e.at)
		got = append(got, e)
	}
	assert.Equal(t, want, got)
	_, ok := q.next()
	assert.False(t, ok)
}

func TestServerQueue(t *testing.T) {
	const s = time.Second
	q := &Queue{Service: s, Latency: 100 * time.Millisecond, Limit: 3 * s, Refusal: 0.5, StallFrom: 10 * s, StallTo: 20 * s}
	for _, step := range []struct {
		at, after time.Duration
		status    int
	}{
		{0, s, 200}, {0, 2 * s, 200}, // one after another
		{5 * s, s, 200},                        // an idle server starts at once
		{9500 * time.Millisecond, 11 * s, 200}, // interrupted by the stall
		{20 * s, 1500 * time.Millisecond, 200},
		{20 * s, 2500 * time.Millisecond, 200},
		{20 * s, 3500 * time.Millisecond, 200},
		{20 * s, 0, 503},     // would wait for too long
		{21 * s, 4 * s, 200}, // behind the refusal
	} {
		a := q.Answer(step.at, 0, 1)
		assert.Equal(t, step.status, a.Status, "%+v", step)
		assert.Equal(t, step.after+q.Latency, a.After, "%+v", step)
	}
}

func TestRejectsPoliciesThatItDoesNotSimulate(t *testing.T) {
	for _, p := range []httpretry.Policy{{}, {WaitOnBudget: true}, {AttemptTimeout: -1}} {
		assert.Error(t, (&Fleet{Policy: p}).Run())
	}
}
