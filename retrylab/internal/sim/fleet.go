// Package sim simulates processes that send requests to one server and retry
// them, event by event.
//
// The waits are those of the library's strategies, the Outcomes those of its
// Classify, and the budgets are HostBudgets on the virtual clock of a bubble
// of testing/synctest. The package has the checks of RetryTransport.RoundTrip
// and the cool-down once more, without goroutines. A test compares each
// decision with those of a RetryTransport.
package sim

import (
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// never is a deadline of requests that have none.
const never = time.Duration(math.MaxInt64)

// A Fleet is processes that send requests to one server. It must run in a
// bubble of package virtual.
type Fleet struct {
	// Policy is that of all processes. Fields that do not matter for a GET are
	// ignored. It must have a Backoff, so that its Rand can be seeded.
	Policy httpretry.Policy

	// Deadline is that of a request's context, from its start. 0: none.
	Deadline time.Duration

	// Budget returns the budget of a process, and the origin of its requests.
	// Nil means that all retries are allowed.
	Budget func(process int) (httpretry.Budget, string)

	Server  Server
	Arrival func() (at time.Duration, process int, ok bool) // of the next request, in the order of time

	// Observe is called for each event of a request. See httpretry.Event.
	Observe func(Event)

	// Jitter returns the jitter of a wait, from 1 to width, after an answer
	// that asks for a wait. Spread returns how long a request waits after the
	// end of a cool-down, which is between two times.
	Jitter func(request int, wait, width time.Duration) time.Duration
	Spread func(request int, now, from, to time.Duration) time.Duration

	Seed uint64

	// Lag is how far the clock of the budgets may be late. Advancing it takes
	// longer than all else that an event does.
	Lag time.Duration
}

// A simulation is a Fleet that is running.
type simulation struct {
	*Fleet
	policy    httpretry.Policy // with its defaults
	outcomes  outcomes
	rand      *rand.Rand
	queue     queue
	requests  []request
	unused    []int32 // requests that have ended
	cooldowns map[int32]*cooldown
	now       time.Duration
	clock     time.Duration // of the bubble
	count     int
}

// An Event is an attempt and the decision after it, as in package httpretry,
// or the end of a wait.
type Event struct {
	Request int // from 0, in the order of their start
	Process int
	Start   time.Duration // of the request
	At      time.Duration
	Sent    time.Duration // when the attempt started
	Status  int           // of the attempt; 0: none was made
	Attempt int
	Wait    time.Duration
	Reason  httpretry.Reason
}

// phase is the activity of a request until its next event.
type phase uint8

const (
	inAttempt  phase = iota
	inBackoff        // waiting before an attempt
	inCooldown       // waiting for the end of a cool-down
	inSpread         // waiting after a cool-down
)

type request struct {
	number   int
	process  int32
	version  uint32
	attempts int
	phase    phase
	start    time.Duration
	deadline time.Duration
	sent     time.Duration
	answer   Answer
	backoff  strategies.Sequence
	charged  httpretry.AttemptResult // that the retry which is next or under way follows; zero: the first attempt

	generation    uint64        // of the cool-down, before the attempt
	cooldownStart time.Duration // when the request began to wait for it; -1: it does not
	asleep        sleep
}

// sleep is a wait for the end of a cool-down.
type sleep struct {
	begun  time.Duration // when the cool-down began
	spread time.Duration // over which retries return
}

// Run simulates all requests until they have ended.
func (f *Fleet) Run() error {
	if err := f.Policy.Validate(); err != nil {
		return err
	}
	if f.Policy.Classify != nil || f.Policy.CooldownKey != nil || f.Policy.RetryAfter != nil {
		return errors.New("sim: Policy: Classify, CooldownKey and RetryAfter are not simulated: want them unset")
	}
	if f.Policy.Backoff == nil {
		return errors.New("sim: Policy.Backoff: nil: want a strategy")
	}
	run := *f
	s := &simulation{
		Fleet: &run, policy: withDefaults(f.Policy), outcomes: outcomes{},
		rand: rand.New(rand.NewPCG(f.Seed, 1)), cooldowns: map[int32]*cooldown{},
	}
	if run.Budget == nil {
		run.Budget = func(int) (httpretry.Budget, string) { return httpretry.Unlimited{}, "" }
	}
	if run.Observe == nil {
		run.Observe = func(Event) {}
	}
	if run.Jitter == nil {
		run.Jitter = func(_ int, _, width time.Duration) time.Duration {
			return time.Duration(s.rand.Int64N(int64(width))) + 1
		}
	}
	if run.Spread == nil {
		run.Spread = func(_ int, _, from, to time.Duration) time.Duration {
			return from + time.Duration(s.rand.Float64()*float64(to-from))
		}
	}
	s.run()
	return nil
}

func (s *simulation) run() {
	at, process, more := s.Arrival()
	for {
		next, ok := s.queue.next()
		switch {
		case more && (!ok || at <= next):
			s.now = at
			s.arrive(process)
			at, process, more = s.Arrival()
		case ok:
			e := s.queue.pop()
			s.now = e.at
			s.happen(e)
		default:
			return
		}
	}
}

// withDefaults fills in the defaults of httpretry.
func withDefaults(p httpretry.Policy) httpretry.Policy {
	switch {
	case p.MaxAttempts == 0:
		p.MaxAttempts = 3
	case p.MaxAttempts < 0:
		p.MaxAttempts = math.MaxInt
	}
	switch {
	case p.MaxRetryAfter == 0:
		p.MaxRetryAfter = time.Minute
	case p.MaxRetryAfter < 0:
		p.MaxRetryAfter = math.MaxInt64
	}
	return p
}

// arrive starts a request.
func (s *simulation) arrive(process int) {
	id := int32(len(s.requests))
	if n := len(s.unused); n > 0 {
		id = s.unused[n-1]
		s.unused = s.unused[:n-1]
	} else {
		s.requests = append(s.requests, request{})
	}
	r := &s.requests[id]
	// An event of the request that was here before stays void.
	*r = request{number: s.count, process: int32(process), version: r.version + 1, start: s.now, deadline: never, cooldownStart: -1}
	s.count++
	if s.Deadline > 0 {
		r.deadline = s.now + s.Deadline
	}
	if s.policy.Cooldown == httpretry.CooldownSend {
		s.send(id)
		return
	}
	s.awaitCooldown(id)
}

// happen carries on with a request whose attempt or wait has ended.
func (s *simulation) happen(e event) {
	r := &s.requests[e.request]
	if e.version != r.version {
		return
	}
	switch r.phase {
	case inAttempt:
		s.answered(e.request)
	case inBackoff, inSpread:
		s.awaitCooldown(e.request)
	case inCooldown:
		s.wake(e.request)
	}
}

// send makes the next attempt.
func (s *simulation) send(id int32) {
	r := &s.requests[id]
	r.attempts++
	r.sent, r.cooldownStart = s.now, -1
	if c := s.cooldowns[r.process]; c != nil {
		r.generation = c.generation
	}
	r.answer = s.Server.Answer(s.now, r.number, r.attempts)
	end := s.now + r.answer.After
	which := answers
	// The server does not notice a timeout, and works on.
	if timeout := s.policy.AttemptTimeout; timeout > 0 && end > s.now+timeout {
		end, which = s.now+timeout, timeouts
		r.answer = Answer{Status: TimedOut}
	}
	if end >= r.deadline {
		end = r.deadline
		r.answer = Answer{Status: TimedOut}
	}
	s.enqueue(which, id, inAttempt, end)
}

// schedule begins a wait that ends at the given time.
func (s *simulation) schedule(id int32, p phase, at time.Duration) {
	s.enqueue(noLane, id, p, at)
}

func (s *simulation) enqueue(which int, id int32, p phase, at time.Duration) {
	r := &s.requests[id]
	r.phase = p
	r.version++
	s.queue.push(which, at, id, r.version)
}

// answered decides what follows an attempt.
func (s *simulation) answered(id int32) {
	r := &s.requests[id]
	s.noteCooldown(r, s.now)
	ended := s.result(r)
	s.record(r, ended)
	wait, reason := s.decide(r, ended, s.now)
	s.report(r, r.answer.Status, wait, reason)
	switch reason {
	case httpretry.ReasonNone:
		s.schedule(id, inBackoff, s.now+wait)
		return
	case httpretry.ReasonSuccess:
		s.noteSuccess(r)
	}
	s.end(id)
}

func (s *simulation) report(r *request, status int, wait time.Duration, reason httpretry.Reason) {
	s.Observe(Event{r.number, int(r.process), r.start, s.now, r.sent, status, r.attempts, wait, reason})
}

func (s *simulation) end(id int32) {
	r := &s.requests[id]
	r.version++
	r.backoff = nil
	s.unused = append(s.unused, id)
}
