// Package outage measures the load that a fleet puts on a server that fails for
// a while and then recovers.
package outage

import (
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/seed421102f4/httpretry"
)

// A Scenario is the load, the server and its failure.
type Scenario struct {
	Rate     float64 // of requests per second, of all processes together
	Capacity float64 // of the server, in requests per second
	Latency  time.Duration
	Queue    time.Duration // the server refuses requests that would wait for longer; 0: none
	Refusal  float64       // the cost of a refusal, as a share of a request

	Fault      string // one of Faults
	From, To   time.Duration
	Length     time.Duration // until requests end
	RetryAfter time.Duration // that a failing server asks for
	Left       float64       // share of the capacity that is left, for slow
	Failing    float64       // share of attempts that fail outside of the outage
	Seed       uint64
}

// Faults are the kinds of failure of a server. With "errors", it answers 503.
// With "stall", it does not answer until the outage is over, and then works off
// its queue. With "slow", it has the share Left of its capacity. With
// "throttle", it answers 429. With "refuse", it refuses connections.
const Faults = "errors, stall, slow, throttle, refuse"

// A Client has the settings that the processes of a fleet share.
type Client struct {
	Processes int
	Policy    func(process int) httpretry.Policy
	Deadline  time.Duration
	Endless   bool // nothing in the policy ends a request
}

// Bucket is the resolution of a Result. From, To and Length are multiples of
// it.
const Bucket = 100 * time.Millisecond

// A Result has the counts of a run. Attempts and Successes are by the time of
// the attempt and of the answer, Begun and OK by that of the start of a
// request. Attempts and answers after Length are not counted.
type Result struct {
	Attempts, Successes []int
	Begun, OK           []int
	Retries             int
	ToSuccess           Histogram // of requests that began in the outage or after it
	ToFailure           Histogram // of all requests that fail
	scenario            Scenario
}

// deadline returns the deadline of a request. If c has no limit, it is the Length, because a request that never succeeds would never end.
func (s Scenario) deadline(c Client) time.Duration {
	if c.Endless && c.Deadline == 0 {
		return s.Length
	}
	return c.Deadline
}

// Run simulates a fleet. It must be called in a bubble of package virtual.
func (s Scenario) Run(c Client) (*Result, error) {
	r := s.NewResult()
	err := Fleet{
		Processes: c.Processes, Rate: s.Rate, Length: s.Length, Deadline: s.deadline(c),
		Policy: c.Policy, Seed: s.Seed, Answer: s.server(),
	}.Run(r)
	return r, err
}

// server returns the function that answers attempts.
func (s Scenario) server() func(time.Duration) Answer {
	q := &Queue{
		Service: time.Duration(float64(time.Second) / s.Capacity), Latency: s.Latency,
		Limit: s.Queue, Refusal: s.Refusal,
	}
	failure, fails := map[string]Answer{
		"errors":   {After: s.Latency, Status: http.StatusServiceUnavailable, RetryAfter: s.RetryAfter},
		"throttle": {After: s.Latency, Status: http.StatusTooManyRequests, RetryAfter: s.RetryAfter},
		"refuse":   {After: s.Latency, Err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}},
	}[s.Fault]
	if !fails {
		q.SlowFrom, q.SlowTo = s.From, s.To
	}
	if s.Fault == "slow" {
		q.Speed = s.Left
	}
	random := rand.New(rand.NewPCG(s.Seed, 11))
	return func(now time.Duration) Answer {
		switch {
		case fails && now >= s.From && now < s.To:
			return failure
		case s.Failing > 0 && random.Float64() < s.Failing:
			return Answer{After: s.Latency, Status: http.StatusServiceUnavailable}
		}
		return q.Answer(now)
	}
}

// NewResult returns the result of a run in which nothing has happened yet. It
// uses From, To and Length.
func (s Scenario) NewResult() *Result {
	n := s.Length/Bucket + 1
	return &Result{scenario: s, Begun: make([]int, n), OK: make([]int, n)}
}

// Sent counts an attempt.
func (r *Result) Sent(at time.Duration) { r.count(&r.Attempts, at) }

// Ended counts a request and whether it succeeded.
func (r *Result) Ended(start, at time.Duration, ok bool) {
	bucket := int(start / Bucket)
	r.Begun[bucket]++
	if !ok {
		r.ToFailure.Add(at - start)
		return
	}
	r.OK[bucket]++
	r.count(&r.Successes, at)
	if start >= r.scenario.From {
		r.ToSuccess.Add(at - start)
	}
}

func (r *Result) count(buckets *[]int, at time.Duration) {
	// A slow server works for weeks on its queue. That would be many buckets.
	if at >= r.scenario.Length {
		return
	}
	i := int(at / Bucket)
	for len(*buckets) <= i {
		*buckets = append(*buckets, 0)
	}
	(*buckets)[i]++
}

// Total returns how many requests began from one time to another, and how many
// of them succeeded.
func (r *Result) Total(from, to time.Duration) (begun, ok int) {
	for i := from / Bucket; i < min(to/Bucket, time.Duration(len(r.Begun))); i++ {
		begun += r.Begun[i]
		ok += r.OK[i]
	}
	return begun, ok
}

// Load returns the attempts from one time to another, as a multiple of the
// requests that began. It is NaN if none did.
func (r *Result) Load(from, to time.Duration) float64 {
	attempts := 0
	for i := from / Bucket; i < min(to/Bucket, time.Duration(len(r.Attempts))); i++ {
		attempts += r.Attempts[i]
	}
	begun, _ := r.Total(from, to)
	if begun == 0 {
		return math.NaN()
	}
	return float64(attempts) / float64(begun)
}

// Success returns the share of all requests that succeed.
func (r *Result) Success() float64 {
	begun, ok := r.Total(0, r.scenario.Length)
	return float64(ok) / float64(begun)
}

// MeanAttempts returns the attempts of all requests, as a multiple of these.
func (r *Result) MeanAttempts() float64 {
	begun, _ := r.Total(0, r.scenario.Length)
	return 1 + float64(r.Retries)/float64(begun)
}

// Busiest returns the most attempts in a second.
func (r *Result) Busiest() int {
	const buckets = int(time.Second / Bucket)
	sum, most := 0, 0
	for i, n := range r.Attempts {
		sum += n
		if i >= buckets {
			sum -= r.Attempts[i-buckets]
		}
		most = max(most, sum)
	}
	return most
}

// Peak returns the most attempts in a bucket after the beginning of the outage.
func (r *Result) Peak() int {
	most := 0
	for _, n := range r.Attempts[min(int(r.scenario.From/Bucket), len(r.Attempts)):] {
		most = max(most, n)
	}
	return most
}

// AtEnd returns the attempts per second in the last tenth of the simulation.
func (r *Result) AtEnd() float64 {
	from := r.scenario.Length * 9 / 10 / Bucket
	attempts := 0
	for _, n := range r.Attempts[min(int(from), len(r.Attempts)):] {
		attempts += n
	}
	return float64(attempts) / (r.scenario.Length - from*Bucket).Seconds()
}

// Recovered returns how long after the outage as many of the requests of each
// second succeed as before it, and reports whether they ever do. Fewer are
// enough if they are 99 %, or if that is within three standard deviations.
func (r *Result) Recovered() (after time.Duration, ok bool) {
	usual := 1.0
	if begun, succeeded := r.Total(0, r.scenario.From); begun > 0 {
		usual = float64(succeeded) / float64(begun)
	}
	seconds := (r.scenario.Length - r.scenario.To) / time.Second
	// The last second in which too few succeed counts.
	for i := range seconds {
		from := r.scenario.To + i*time.Second
		begun, succeeded := r.Total(from, from+time.Second)
		n := float64(begun)
		if float64(succeeded) < 0.99*usual*n-3*math.Sqrt(n*usual*(1-usual)) {
			after = (i + 1) * time.Second
		}
	}
	return after, after < seconds*time.Second
}

// A Histogram counts durations with a resolution of one percent.
type Histogram struct {
	bins []int
	n    int
}

const (
	finest = time.Microsecond
	growth = 1.01
)

// Add counts a duration.
func (h *Histogram) Add(d time.Duration) {
	i := int(math.Log(float64(max(d, finest))/float64(finest)) / math.Log(growth))
	for len(h.bins) <= i {
		h.bins = append(h.bins, 0)
	}
	h.bins[i]++
	h.n++
}

// Quantile returns the duration that the share p does not exceed, and reports
// whether there is any.
func (h *Histogram) Quantile(p float64) (time.Duration, bool) {
	left := min(int(p*float64(h.n)), h.n-1)
	for i, n := range h.bins {
		if left -= n; left < 0 {
			return time.Duration(float64(finest) * math.Pow(growth, float64(i)+0.5)), true
		}
	}
	return 0, false
}
