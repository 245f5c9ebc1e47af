package httpretry_test

import (
	"context"
	"log"
	"net/http"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// sreThrottle is the client-side throttling of Google's SRE book (chapter
// "Handling Overload"), for retries. If a host accepts less than a K-th of the
// attempts, a part of the retries is refused that grows with the rest. It counts
// the attempts of this minute and the minute before. It forgets no host, so it is
// for programs that choose their hosts themselves.
type sreThrottle struct {
	k      float64
	random func() float64 // such as rand.Float64

	mu    sync.Mutex
	hosts map[string]*sreHost
}

type sreHost struct {
	minute   int64
	attempts [2]float64 // in this minute, and in the one before
	accepted [2]float64
}

// host returns the state of an origin. s.mu is held.
func (s *sreThrottle) host(origin string) *sreHost {
	h := s.hosts[origin]
	if h == nil {
		h = new(sreHost)
		if s.hosts == nil {
			s.hosts = make(map[string]*sreHost)
		}
		s.hosts[origin] = h
	}
	switch now := time.Now().Unix() / 60; now - h.minute {
	case 0:
	case 1:
		h.minute, h.attempts[1], h.accepted[1] = now, h.attempts[0], h.accepted[0]
		h.attempts[0], h.accepted[0] = 0, 0
	default:
		*h = sreHost{minute: now}
	}
	return h
}

func (s *sreThrottle) Withdraw(_ context.Context, last httpretry.AttemptResult) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.host(last.Origin)
	attempts, accepted := h.attempts[0]+h.attempts[1], h.accepted[0]+h.accepted[1]
	return s.random() >= max(0, (attempts-s.k*accepted)/(attempts+1))
}

// Refund has nothing to give back, because attempts count when they end.
func (*sreThrottle) Refund(httpretry.AttemptResult) {}

func (s *sreThrottle) Record(ended, _ httpretry.AttemptResult) {
	if ended.Outcome == httpretry.Final && !ended.Succeeded() {
		return // it shows nothing about the host
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.host(ended.Origin)
	h.attempts[0]++
	if ended.Succeeded() {
		h.accepted[0]++
	}
}

// A budget can refuse a part of the retries at random.
func ExampleBudget_sreThrottle() {
	down := unreliable(1000)
	defer down.Close()
	transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
		Budget:      &sreThrottle{k: 2, random: func() float64 { return 0.7 }},
		MaxAttempts: 5,
		Backoff:     strategies.Constant{},
	}})
	if err != nil {
		log.Fatal(err)
	}
	// After three failures, three of four retries are refused.
	showResult((&http.Client{Transport: transport}).Get(down.URL))
	// Output: {3 budget_exhausted false}
}
