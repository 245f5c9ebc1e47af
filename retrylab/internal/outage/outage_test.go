package outage_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/outage"
	"github.com/seed421102f4/httpretry/retrylab/internal/virtual"
	"github.com/seed421102f4/httpretry/strategies"
)

// stall is a server that gets 80 requests a second, of which it can answer 100,
// and ten seconds in which it answers none.
var stall = outage.Scenario{
	Rate: 80, Capacity: 100, Fault: "stall", From: 20 * time.Second, To: 30 * time.Second, Length: 230 * time.Second,
}

func client(t *testing.T, processes, attempts int, kind string) outage.Client {
	t.Helper()
	budget := func() httpretry.Budget {
		if kind == "unlimited" {
			return httpretry.Unlimited{}
		}
		return &httpretry.HostBudget{Strict: kind == "strict"}
	}
	backoff := strategies.DecorrelatedV2{Rand: strategies.Seeded(uint64(processes))}
	return outage.Client{Processes: processes, Policy: func() httpretry.Policy {
		return httpretry.Policy{
			MaxAttempts: attempts, AttemptTimeout: 2 * time.Second, Backoff: backoff, Budget: budget(),
		}
	}}
}

func run(t *testing.T, s outage.Scenario, c outage.Client) *outage.Result {
	t.Helper()
	var r *outage.Result
	virtual.New(t)(func() {
		var err error
		r, err = s.Run(c)
		require.NoError(t, err)
	})
	return r
}

// These are the ranges of docs/choosing.md, with some of its seeds, and 10 % to
// spare. Without retries, (800 - 2*100)/(100 - 80) = 30 s are expected, because
// clients wait for two seconds of the ten.
func TestRecoversAsDocumented(t *testing.T) {
	for _, c := range []struct {
		processes, attempts int
		least, most         float64
	}{
		{100, 1, 30, 37}, {5, 3, 39, 45}, {100, 3, 45, 57}, {400, 3, 70, 88},
	} {
		for seed := range uint64(2) {
			s := stall
			s.Seed = seed + 1
			after, ok := run(t, s, client(t, c.processes, c.attempts, "default")).Recovered()
			t.Logf("%d processes, %d attempts: %v", c.processes, c.attempts, after)
			assert.True(t, ok)
			assert.GreaterOrEqual(t, after.Seconds(), 0.9*c.least, "%+v", c)
			assert.LessOrEqual(t, after.Seconds(), 1.1*c.most, "%+v", c)
		}
	}
	s := stall
	s.Length = 130 * time.Second
	_, ok := run(t, s, client(t, 100, 3, "unlimited")).Recovered()
	assert.False(t, ok, "without a budget the server does not recover")
}

// The table of random failures in docs/choosing.md. The rate of a process does
// not matter.
func TestRandomFailuresAsDocumented(t *testing.T) {
	for _, c := range []struct {
		kind                   string
		rate, failing, success float64
	}{
		{"default", 5, 0.1, 0.999}, {"default", 0.1, 0.3, 0.972}, {"default", 5, 0.3, 0.972}, {"strict", 5, 0.3, 0.83},
	} {
		const processes, requests = 10, 10_000
		s := outage.Scenario{
			Rate: c.rate * processes, Capacity: 1e6, Fault: "errors", Failing: c.failing, Latency: 50 * time.Millisecond,
			Length: time.Duration(requests/(c.rate*processes)) * time.Second,
		}
		// The fewer fail, the less chance matters.
		assert.InDelta(t, c.success, run(t, s, client(t, processes, 3, c.kind)).Success(), min(0.004+0.2*(1-c.success), 0.03), "%+v", c)
	}
}

// A server that answers 429 to everybody, and then works off the requests that
// return. The table is in docs/choosing.md. Fleets are chaotic, so seeds
// differ.
func TestThrottledFleetsAsDocumented(t *testing.T) {
	for _, c := range []struct {
		fault              string
		processes, retries int
		cooldown           httpretry.Cooldown
		least, most        float64
	}{
		{"throttle", 100, 2, httpretry.CooldownSend, 0.40, 0.65},
		{"throttle", 100, 2, httpretry.CooldownFail, 0.92, 0.94},
		{"throttle", 400, 2, httpretry.CooldownSend, 0.25, 0.60},
		// Retries after a 503 are charged.
		{"errors", 100, 2, httpretry.CooldownSend, 0.60, 0.78},
	} {
		s := stall
		s.Fault, s.RetryAfter, s.Length, s.Seed = c.fault, 2*time.Second, 150*time.Second, 1
		fleet := client(t, c.processes, 1+c.retries, "default")
		policy := fleet.Policy
		fleet.Policy = func() httpretry.Policy {
			p := policy()
			p.Cooldown = c.cooldown
			return p
		}
		begun, ok := run(t, s, fleet).Total(s.From, s.Length)
		success := float64(ok) / float64(begun)
		assert.GreaterOrEqual(t, success, c.least, "%+v", c)
		assert.LessOrEqual(t, success, c.most, "%+v", c)
	}
}

// Without a budget, the share of requests that succeed has a closed form, and
// so has the load.
func TestRandomFailuresWithoutBudget(t *testing.T) {
	const p = 0.5
	const success, load = 1 - p*p*p, 1 + p + p*p
	s := outage.Scenario{Rate: 200, Capacity: 1e6, Fault: "errors", Failing: p, Latency: time.Millisecond, Length: 100 * time.Second}
	r := run(t, s, client(t, 10, 3, "unlimited"))
	// Within five standard deviations of 20,000 requests.
	assert.InDelta(t, success, r.Success(), 0.012)
	assert.InDelta(t, load, r.Load(0, s.Length), 0.03)
	assert.InDelta(t, load, r.MeanAttempts(), 0.03)
	// Of 100 seconds, the busiest is about three deviations above the mean.
	assert.InEpsilon(t, s.Rate*load+3*math.Sqrt(s.Rate*load), r.Busiest(), 0.15)
}

// Without retries, all requests to replicas that restart fail, and no others.
func TestRestarts(t *testing.T) {
	for _, kind := range []string{"503", "refused", "reset", "timeout"} {
		s := outage.Scenario{
			Rate: 100, Capacity: math.Inf(1), Latency: 10 * time.Millisecond, Fault: kind, Replicas: 10, Restarting: 3,
			From: 5 * time.Second, To: 45 * time.Second, Length: time.Minute,
		}
		r := run(t, s, client(t, 2, 1, "unlimited"))
		for _, c := range []struct {
			from, to time.Duration
			failed   float64
		}{{0, s.From, 0}, {s.From, s.To, 0.3}, {s.To, s.Length, 0}} {
			begun, ok := r.Total(c.from, c.to)
			// Within five standard deviations.
			assert.InDelta(t, c.failed, 1-float64(ok)/float64(begun), 5*math.Sqrt(c.failed*0.7/4000), "%s: %+v", kind, c)
		}
	}
}

// After the restart, a cold host is slower than its load for a while. It has a
// half of its capacity after nine seconds.
func TestColdHost(t *testing.T) {
	s := outage.Scenario{
		Rate: 100, Capacity: 200, Fault: "503", Replicas: 1, Restarting: 1,
		From: 5 * time.Second, To: 8 * time.Second, Length: 68 * time.Second,
	}
	back, ok := run(t, s, client(t, 2, 1, "unlimited")).Recovered()
	assert.True(t, ok)
	assert.Zero(t, back)
	s.Cold = 20 * time.Second
	back, ok = run(t, s, client(t, 2, 1, "unlimited")).Recovered()
	assert.True(t, ok)
	assert.Greater(t, back, 9*time.Second)
}

// Answers that come long after the end need no memory.
func TestLateAnswers(t *testing.T) {
	s := stall
	s.Capacity, s.Length = 0.01, 40*time.Second
	c := client(t, 100, 1, "unlimited")
	c.Policy = func() httpretry.Policy { return httpretry.Policy{MaxAttempts: 1} }
	r := run(t, s, c)
	begun, _ := r.Total(0, s.Length)
	assert.Greater(t, begun, 3000)
	assert.LessOrEqual(t, len(r.Successes), int(s.Length/outage.Bucket))
}

func TestQueue(t *testing.T) {
	const s = time.Second
	type step struct {
		at, after time.Duration
		status    int
	}
	for _, c := range []struct {
		speed float64
		steps []step
	}{
		{0, []step{
			{0, s, 200}, {0, 2 * s, 200}, // one after another
			{5 * s, s, 200},                        // an idle server starts at once
			{9500 * time.Millisecond, 11 * s, 200}, // interrupted by the stall
			{20 * s, 1500 * time.Millisecond, 200},
			{20 * s, 2500 * time.Millisecond, 200},
			{20 * s, 3500 * time.Millisecond, 200},
		}},
		{0.25, []step{
			{9500 * time.Millisecond, 2500 * time.Millisecond, 200}, // half of it, four times as slow
			{12 * s, 4 * s, 200}, {16 * s, 4 * s, 200},
			{18 * s, 3 * s, 200}, // done as soon as the slow time is over
			{19 * s, 3 * s, 200},
		}},
	} {
		q := &outage.Queue{
			Service: s, Latency: 100 * time.Millisecond,
			SlowFrom: 10 * s, SlowTo: 20 * s, Speed: c.speed,
		}
		for _, step := range c.steps {
			a := q.Answer(step.at)
			assert.Equal(t, step.status, a.Status, "%+v", step)
			assert.Equal(t, step.after+q.Latency, a.After, "%+v", step)
		}
	}
}
