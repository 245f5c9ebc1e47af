package sim

import (
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// Events come out in the order of time, and of their making, whatever lane they
// were meant for.
func TestQueueOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var q queue
	var want []event
	now := time.Duration(0)
	for step := range 5000 {
		// The queue is long at times and empty at others.
		if r.IntN(100) < 30+40*(step/500%2) || len(want) == 0 {
			// Few different times, so that many are equal.
			e := event{now + time.Duration(r.IntN(50)), q.order + 1, int32(r.IntN(9)), r.Uint32()}
			q.push([]int{answers, timeouts, noLane}[r.IntN(3)], e.at, e.request, e.version)
			i, _ := slices.BinarySearchFunc(want, e, func(a, b event) int {
				if a.before(b) {
					return -1
				}
				return 1
			})
			want = slices.Insert(want, i, e)
			continue
		}
		at, ok := q.next()
		require.True(t, ok)
		now = at
		require.Equal(t, want[0].at, at)
		require.Equal(t, want[0], q.pop())
		want = want[1:]
		_, ok = q.next()
		require.Equal(t, len(want) > 0, ok)
	}
}

// Events in the order of time are never sorted, and a lane needs no more room
// than for those that are to come.
func TestLane(t *testing.T) {
	var q queue
	for at := range time.Duration(10_000) {
		q.push(timeouts, at+100, 0, 0)
		q.push(answers, at+1, 0, 0)
		assert.Empty(t, q.rest)
		for next, _ := q.next(); next <= at; next, _ = q.next() {
			q.pop()
		}
	}
	for _, l := range q.lanes {
		assert.LessOrEqual(t, cap(l.events), 512)
	}
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
	backoff := strategies.Constant{Wait: time.Second}
	key := func(*http.Request) string { return "" }
	for want, p := range map[string]httpretry.Policy{
		"Policy.Backoff: nil":  {},
		"AttemptTimeout: -1ns": {Backoff: backoff, AttemptTimeout: -1},
		"CooldownKey and":      {Backoff: backoff, CooldownKey: key},
		"Policy: Classify,":    {Backoff: backoff, Classify: httpretry.Classify},
		"RetryAfter are not": {Backoff: backoff, RetryAfter: func(*http.Response) (time.Duration, bool) {
			return 0, false
		}},
	} {
		assert.ErrorContains(t, (&Fleet{Policy: p}).Run(), want)
	}
}

// Each field of a Policy is simulated, rejected, or does not matter for a GET
// whose response is not resumed.
func TestFieldsOfPolicies(t *testing.T) {
	const simulated, rejected, ignored = "simulated", "rejected", "ignored"
	fields := map[string]string{
		"MaxAttempts":       simulated,
		"Backoff":           simulated,
		"MaxRetryAfter":     simulated,
		"AttemptTimeout":    simulated,
		"ReadAhead":         ignored, // its responses have no body
		"MaxElapsed":        simulated,
		"Cooldown":          simulated,
		"Budget":            ignored, // Fleet.Budget is simulated
		"CooldownKey":       rejected,
		"RetryAfter":        rejected,
		"Classify":          rejected,
		"Idempotent":        ignored,
		"NewIdempotencyKey": ignored,
		"IdempotencyHeader": ignored,
		"ReplayBuffer":      ignored,
		"Resume":            ignored,
		"ResumeSame":        ignored,
		"ResumeIdle":        ignored,
	}
	for f := range reflect.TypeFor[httpretry.Policy]().Fields() {
		if f.IsExported() {
			assert.Contains(t, fields, f.Name, "want it in the table, and simulated or rejected by Run if it matters")
		}
	}
}
