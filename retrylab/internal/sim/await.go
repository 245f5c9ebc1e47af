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
		s.refundUnsent(r)
		s.report(r, 0, 0, httpretry.ReasonCooldown)
		s.end(id)
		return
	}
	r.asleep = sleep{begun: c.begun, spread: c.spread}
	s.schedule(id, inCooldown, c.until)
	c.sleepers = append(c.sleepers, id)
}

// wake begins the second wait of a request after a cool-down, which spreads
// the requests that have waited for its end.
func (s *simulation) wake(id int32) {
	r := &s.requests[id]
	// The server has asked again.
	if s.cooldowns[r.process].until > s.now {
		s.awaitCooldown(id)
		return
	}
	left := s.timeLeft(r, s.now)
	// A success may have ended the cool-down early.
	from, to := time.Duration(0), max(min(r.asleep.spread, s.now-r.asleep.begun, left), 0)
	if r.attempts == 0 {
		waited := s.now - r.cooldownStart
		to = max(min(waited, left, s.policy.MaxRetryAfter-waited), 0)
		from = to / 2
	}
	s.schedule(id, inSpread, s.now+s.Spread(r.number, s.now, from, to))
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
