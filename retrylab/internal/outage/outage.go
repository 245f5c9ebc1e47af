// Package outage measures the load that a fleet puts on a server that fails for
// a while and then recovers.
package outage

import (
	"math"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/sim"
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
	Failing    float64       // share of attempts that fail outside of the outage
	Seed       uint64
}

// Faults are the kinds of failure of a server. With "errors", it answers 503.
// With "stall", it does not answer until the outage is over, and then works off
// its queue. With "throttle", it answers 429. With "refuse", it refuses
// connections.
const Faults = "errors, stall, throttle, refuse"

// A Client has the settings that the processes of a fleet share.
type Client struct {
	Processes int
	Policy    httpretry.Policy
	Deadline  time.Duration
	Budget    func(process int) (httpretry.Budget, string)
	Lag       time.Duration // see sim.Fleet
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
	Events              int
	ToSuccess           Histogram // of requests that began in the outage or after it
	scenario            Scenario
}

// deadline returns the deadline of a request. If c sets no limit, it is the
// Length, because a request that never succeeds would never end.
func (s Scenario) deadline(c Client) time.Duration {
	if c.Policy.MaxAttempts < 0 && c.Policy.MaxElapsed == 0 && c.Deadline == 0 {
		return s.Length
	}
	return c.Deadline
}

// Run simulates a fleet. progress is called now and then with the share of the
// time that has passed.
func (s Scenario) Run(c Client, progress func(float64)) (*Result, error) {
	r := s.NewResult()
	random := rand.New(rand.NewPCG(s.Seed, 10))
	f := &sim.Fleet{
		Policy: c.Policy, Deadline: s.deadline(c), Budget: c.Budget, Lag: c.Lag, Seed: s.Seed,
		Server:  s.server(),
		Observe: r.observe,
	}
	at, arrivals := time.Duration(0), 0
	f.Arrival = func() (time.Duration, int, bool) {
		at += time.Duration(random.ExpFloat64() / s.Rate * float64(time.Second))
		if arrivals++; arrivals%10_000 == 0 {
			progress(float64(at) / float64(s.Length))
		}
		return at, random.IntN(c.Processes), at < s.Length
	}
	err := f.Run()
	progress(1)
	return r, err
}

func (s Scenario) server() sim.Server {
	q := &sim.Queue{
		Service: time.Duration(float64(time.Second) / s.Capacity), Latency: s.Latency,
		Limit: s.Queue, Refusal: s.Refusal,
	}
	status := map[string]int{
		"errors": http.StatusServiceUnavailable, "throttle": http.StatusTooManyRequests, "refuse": sim.Refused,
	}[s.Fault]
	// Only a stall has no status.
	if status == 0 {
		q.StallFrom, q.StallTo = s.From, s.To
	}
	random := rand.New(rand.NewPCG(s.Seed, 11))
	q.Fault = func(now time.Duration) (sim.Answer, bool) {
		switch {
		case status != 0 && now >= s.From && now < s.To:
			a := sim.Answer{Status: status}
			if status > 0 {
				a.RetryAfter = s.RetryAfter
			}
			return a, true
		case s.Failing > 0 && random.Float64() < s.Failing:
			return sim.Answer{Status: http.StatusServiceUnavailable}, true
		}
		return sim.Answer{}, false
	}
	return q
}

// NewResult returns the result of a run in which nothing has happened yet. It
// uses From, To and Length.
func (s Scenario) NewResult() *Result {
	n := s.Length/Bucket + 1
	return &Result{scenario: s, Begun: make([]int, n), OK: make([]int, n)}
}

func (r *Result) observe(e sim.Event) {
	r.Events++
	// Without a status, a wait ended the request, and there was no attempt.
	if e.Status != 0 {
		r.Sent(e.Sent)
		if e.Attempt > 1 {
			r.Retries++
		}
	}
	if e.Reason != httpretry.ReasonNone {
		r.Ended(e.Start, e.At, e.Reason == httpretry.ReasonSuccess)
	}
}

// Sent counts an attempt.
func (r *Result) Sent(at time.Duration) { r.count(&r.Attempts, at) }

// Ended counts a request and whether it succeeded.
func (r *Result) Ended(start, at time.Duration, ok bool) {
	bucket := int(start / Bucket)
	r.Begun[bucket]++
	if !ok {
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
	left := int(p * float64(h.n))
	for i, n := range h.bins {
		if left -= n; left < 0 {
			return time.Duration(float64(finest) * math.Pow(growth, float64(i)+0.5)), true
		}
	}
	return 0, false
}
