package sim

import (
	"time"

	"github.com/seed421102f4/httpretry"
)

// awaitCooldown sends the next attempt, or waits until the server has cooled
// down. If that takes too long, the request ends.
func (s *simulation) awaitCooldown(id int32) {
	r := &s.requests[id]
	c := s.cooldowns[r.process]
	if c == nil || c.until <= s.now {
		s.leave(r)
		s.send(id)
		return
	}
	// The server may ask again and again, so MaxRetryAfter limits the total.
	if r.cooldownStart < 0 {
		r.cooldownStart = s.now
	}
	first := r.attempts == 0
	if first && s.policy.Cooldown == httpretry.CooldownFail ||
		c.until-r.cooldownStart > s.policy.MaxRetryAfter || c.until-s.now > s.timeLeft(r, s.now) {
		s.leave(r)
		s.refundUnsent(r)
		s.report(r, 0, 0, httpretry.ReasonCooldown)
		s.end(id)
		return
	}
	r.asleep = sleep{begun: c.begun, spread: c.spread}
	// First attempts have places of their own, retries return at random.
	if first {
		r.asleep.place = c.place()
		if r.arrived == nil {
			r.arrived = c.firsts.PushBack(s.now)
		}
	} else {
		r.asleep.place = s.rand.Float64()
	}
	s.schedule(id, inCooldown, c.until)
	c.sleepers = append(c.sleepers, id)
}

// leave notes that a request does not wait for its first attempt any more.
func (s *simulation) leave(r *request) {
	if r.arrived != nil {
		s.cooldowns[r.process].firsts.Remove(r.arrived)
		r.arrived = nil
	}
}

// wake begins the second wait of a request after a cool-down, which spreads
// the requests that have waited for its end.
func (s *simulation) wake(id int32) {
	r := &s.requests[id]
	slept := r.asleep
	// A success may have ended the cool-down early.
	width := min(slept.spread, s.now-slept.begun)
	// First attempts return over the time in which they arrived.
	if r.attempts == 0 {
		oldest := s.cooldowns[r.process].firsts.Front().Value.(time.Duration)
		width = min(s.now-oldest, s.policy.MaxRetryAfter-(s.now-r.cooldownStart))
	}
	width = min(width, s.timeLeft(r, s.now))
	s.schedule(id, inSpread, s.now+s.Spread(r.number, s.now, width, slept.place))
}

// noteSuccess ends the cool-down of a server that answered a request which was
// sent after it began.
func (s *simulation) noteSuccess(r *request) {
	c := s.cooldowns[r.process]
	if c == nil || c.until <= s.now {
		return
	}
	for _, id := range c.clear(r.generation) {
		// Those that sleep no longer, or for another one, are not woken.
		if slept := &s.requests[id]; slept.phase == inCooldown && slept.process == r.process {
			s.schedule(id, inCooldown, s.now)
		}
	}
}
