package sim

import (
	"cmp"
	"math"
	"slices"
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
	// First attempts have turns, retries return at random.
	if !first {
		r.asleep.place = s.rand.Float64()
	} else if r.first == nil {
		r.first = c.firsts.PushBack(id)
	}
	s.schedule(id, inCooldown, c.until)
	c.sleepers = append(c.sleepers, id)
}

// leave notes that a request does not wait for its first attempt any more.
func (s *simulation) leave(r *request) {
	if r.first != nil {
		s.cooldowns[r.process].firsts.Remove(r.first)
		r.first = nil
	}
}

// wake begins the second wait of a request after a cool-down, which spreads
// the requests that have waited for its end.
func (s *simulation) wake(id int32) {
	r := &s.requests[id]
	if r.attempts == 0 {
		s.awaitTurn(id)
		return
	}
	// A success may have ended the cool-down early.
	width := max(min(r.asleep.spread, s.now-r.asleep.begun, s.timeLeft(r, s.now)), 0)
	s.schedule(id, inSpread, s.now+s.Spread(r.number, s.now, 0, width, r.asleep.place))
}

// awaitTurn sends a first attempt if its turn has come. Otherwise it waits for
// the turn, or for the end of another cool-down.
func (s *simulation) awaitTurn(id int32) {
	r := &s.requests[id]
	c := s.cooldowns[r.process]
	if c.until <= s.now {
		if !c.planned {
			s.plan(c)
		}
		if slot := r.slot; slot != nil {
			r.slot = nil
			r.turn = s.now + max(s.Spread(r.number, s.now, slot.from-s.now, slot.to-s.now, slot.share), 0)
		}
		if r.turn > s.now {
			s.schedule(id, inSpread, r.turn)
			return
		}
	}
	s.awaitCooldown(id)
}

// plan gives the first attempts that wait for the end of a cool-down their
// turns, by the rule of internal/cooldown.
func (s *simulation) plan(c *cooldown) {
	c.planned = true
	var waiters []turn
	for e := c.firsts.Front(); e != nil; e = e.Next() {
		id := e.Value.(int32)
		r := &s.requests[id]
		waited := c.end - r.cooldownStart
		longest := min(waited, s.policy.MaxRetryAfter-waited, s.timeLeft(r, c.end))
		waiters = append(waiters, turn{id, max(longest, 0)})
	}
	slices.SortStableFunc(waiters, func(a, b turn) int { return cmp.Compare(a.longest, b.longest) })
	begin := time.Duration(0)
	for len(waiters) > 0 {
		// The lowest rate at which each of these is in time is that of the most
		// crowded ones.
		n, interval := 0, math.Inf(1)
		for i, w := range waiters {
			if each := float64(w.longest-begin) / float64(i+1); each <= interval {
				n, interval = i+1, each
			}
		}
		for i, w := range waiters[:n] {
			from := c.end + begin + time.Duration(float64(i)*interval)
			s.requests[w.id].slot = &slot{from, from + time.Duration(interval), c.share}
		}
		begin = waiters[n-1].longest
		waiters = waiters[n:]
	}
}

// A turn is that of a waiting request.
type turn struct {
	id      int32
	longest time.Duration // for which it may wait after the end of the cool-down
}

// noteSuccess ends the cool-down of a server that answered a request which was
// sent after it began.
func (s *simulation) noteSuccess(r *request) {
	c := s.cooldowns[r.process]
	if c == nil || c.until <= s.now {
		return
	}
	for _, id := range c.clear(s.now, r.generation) {
		// Those that sleep no longer, or for another one, are not woken.
		if slept := &s.requests[id]; slept.phase == inCooldown && slept.process == r.process {
			s.schedule(id, inCooldown, s.now)
		}
	}
}
