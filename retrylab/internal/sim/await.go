package sim

import "github.com/seed421102f4/httpretry"

// awaitCooldown sends the next attempt, or waits until the server has cooled
// down. If that takes too long, the request ends.
func (s *simulation) awaitCooldown(id int32) {
	r := &s.requests[id]
	c := s.cooldowns[r.process]
	if c == nil || c.until <= s.now {
		s.send(id)
		return
	}
	// The server may ask again and again: MaxRetryAfter limits the total.
	if r.cooldownStart < 0 {
		r.cooldownStart = s.now
	}
	remaining, left := c.until-s.now, s.timeLeft(r, s.now)
	first := r.attempts == 0
	if first && s.policy.Cooldown == httpretry.CooldownFail ||
		c.until-r.cooldownStart > s.policy.MaxRetryAfter || remaining > left {
		s.refundUnsent(r)
		s.report(r, 0, 0, httpretry.ReasonCooldown)
		s.end(id)
		return
	}
	r.asleep = sleep{began: s.now, wait: remaining, length: c.until - c.begun, width: c.spread}
	// First attempts have places of their own, retries return at random.
	if first {
		r.asleep.length = min(r.asleep.length, s.policy.MaxRetryAfter)
		r.asleep.width, r.asleep.place = r.asleep.length, c.place()
	} else {
		r.asleep.place = s.rand.Float64()
	}
	s.schedule(id, inCooldown, s.now+remaining)
	c.sleepers = append(c.sleepers, id)
}

// wake begins the second wait of a request after a cool-down, which spreads
// the requests that have waited for its end.
func (s *simulation) wake(id int32) {
	r := &s.requests[id]
	slept := r.asleep
	// If a success has ended the cool-down early, it lasted less long.
	early := max(slept.wait-(s.now-slept.began), 0)
	room := s.timeLeft(r, slept.began) - slept.wait
	width := max(min(slept.width, slept.length-early, room), 0)
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
