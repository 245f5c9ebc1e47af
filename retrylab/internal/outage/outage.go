// Package outage measures the load that a fleet puts on a server that fails for
// a while and then recovers.
package outage

import (
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
)

// A Scenario is the load, the server and its failure.
type Scenario struct {
	Rate     float64 // of requests per second, of all processes together
	Capacity float64 // of the server, in requests per second
	Latency  time.Duration

	Fault      string // one of Faults
	From, To   time.Duration
	Length     time.Duration // until requests end
	RetryAfter time.Duration // that a failing server asks for
	Left       float64       // share of the capacity that is left, for slow
	Failing    float64       // share of attempts that fail outside of the outage
	Seed       uint64

	// A host of Replicas balances attempts at random, and Restarting ones fail. The
	// capacity of these grows from a tenth for the time Cold after it. 0: the host
	// is one server.
	Replicas, Restarting int
	Cold                 time.Duration
}

// Faults are the kinds of failure of a server. With "errors", it answers 503.
// With "stall", it does not answer until the outage is over, and then works off
// its queue. With "slow", it has the share Left of its capacity. With
// "throttle", it answers 429. With "refuse", it refuses connections.
const Faults = "errors, stall, slow, throttle, refuse"

// Restarts are those of a host that restarts.
const Restarts = "503, refused, reset, timeout, stall"

// A Client has the settings that the processes of a fleet share.
type Client struct {
	Processes int
	Policy    func() httpretry.Policy // of one more process
	Deadline  time.Duration           // 0: none, or Length if nothing in the policy ends a request
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
	ToSuccess           Durations // of requests that began in the outage or after it
	ToFailure           Durations // of all requests that fail
	scenario            Scenario
}

func (s Scenario) failure() (Answer, bool) {
	a := Answer{After: s.Latency, Status: http.StatusServiceUnavailable, RetryAfter: s.RetryAfter}
	switch s.Fault {
	case "errors", "503":
	case "throttle":
		a.Status = http.StatusTooManyRequests
	case "refuse", "refused":
		a.Err = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case "reset":
		a.Err = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	case "timeout":
		a.After = math.MaxInt64
	default:
		return a, false
	}
	return a, true
}

func (s Scenario) server() func(time.Duration) Answer {
	failure, fails := s.failure()
	all, failing := max(s.Replicas, 1), s.Restarting
	if s.Replicas == 0 {
		failing = 1
	}
	replicas := make([]Queue, all)
	for i := range replicas {
		q := &replicas[i]
		*q = Queue{
			Service: time.Duration(float64(time.Second) * float64(all) / s.Capacity), Latency: s.Latency,
		}
		if i >= failing {
			continue
		}
		q.ColdFrom, q.ColdTo = s.To, s.To+s.Cold
		if !fails {
			q.SlowFrom, q.SlowTo = s.From, s.To
		}
		if s.Fault == "slow" {
			q.Speed = s.Left
		}
	}
	random, balancer := rand.New(rand.NewPCG(s.Seed, 11)), rand.New(rand.NewPCG(s.Seed, 51))
	return func(now time.Duration) Answer {
		i := balancer.IntN(all)
		switch {
		case fails && i < failing && now >= s.From && now < s.To:
			return failure
		case s.Failing > 0 && random.Float64() < s.Failing:
			return Answer{After: s.Latency, Status: http.StatusServiceUnavailable}
		}
		return replicas[i].Answer(now)
	}
}

func (r *Result) ended(start, at time.Duration, ok bool) {
	count(r.Begun, start)
	if !ok {
		r.ToFailure = append(r.ToFailure, at-start)
		return
	}
	count(r.OK, start)
	count(r.Successes, at)
	if start >= r.scenario.From {
		r.ToSuccess = append(r.ToSuccess, at-start)
	}
}

// count counts one at a time. A slow server works for weeks on its queue, which
// is after the last bucket.
func count(buckets []int, at time.Duration) {
	if i := int(at / Bucket); i < len(buckets) {
		buckets[i]++
	}
}

// Sum returns the counts from one time to another.
func Sum(buckets []int, from, to time.Duration) (sum int) {
	for _, n := range buckets[from/Bucket : to/Bucket] {
		sum += n
	}
	return sum
}

// Total returns how many requests began from one time to another, and how many
// of them succeeded.
func (r *Result) Total(from, to time.Duration) (begun, ok int) {
	return Sum(r.Begun, from, to), Sum(r.OK, from, to)
}

// Load returns the attempts from one time to another, as a multiple of the
// requests that began. It is NaN if none did.
func (r *Result) Load(from, to time.Duration) float64 {
	begun := Sum(r.Begun, from, to)
	if begun == 0 {
		return math.NaN()
	}
	return float64(Sum(r.Attempts, from, to)) / float64(begun)
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
	most := 0
	for end := time.Second; end <= r.scenario.Length; end += Bucket {
		most = max(most, Sum(r.Attempts, end-time.Second, end))
	}
	return most
}

// Peak returns the most attempts in a bucket after the beginning of the outage.
func (r *Result) Peak() int {
	return slices.Max(r.Attempts[r.scenario.From/Bucket:])
}

// AtEnd returns the attempts per second in the last tenth of the simulation.
func (r *Result) AtEnd() float64 {
	end := r.scenario.Length
	from := (end * 9 / 10).Truncate(Bucket)
	return float64(Sum(r.Attempts, from, end)) / (end - from).Seconds()
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

// Durations are those of requests.
type Durations []time.Duration

// Quantile returns the duration that the share p does not exceed, or
// report.Unknown. It sorts d.
func (d Durations) Quantile(p float64) time.Duration {
	if len(d) == 0 {
		return report.Unknown
	}
	slices.Sort(d)
	return d[min(int(p*float64(len(d))), len(d)-1)]
}
