package redisbudget

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	minProbe = 100 * time.Millisecond
	maxProbe = 5 * time.Second

	// steady is how long Redis has to work until the next failure is probed
	// after minProbe again.
	steady = 10 * time.Second
)

// phase determines which budget decides.
type phase int32

const (
	shared phase = iota // the one in Redis
	local               // the HostBudget, until Redis works again
	closed              // the HostBudget, after Close
)

// state is the phase, and the data for the return to shared.
type state struct {
	phase atomic.Int32

	mu        sync.Mutex
	key       string        // that failed: the probe has to work for it
	wait      time.Duration // before the next probe
	probeAt   time.Duration
	recovered time.Duration
}

func (s *state) load() phase { return phase(s.phase.Load()) }

// close enters closed and returns the phase before.
func (s *state) close() phase {
	s.mu.Lock()
	defer s.mu.Unlock()
	return phase(s.phase.Swap(int32(closed)))
}

// fail makes the local budget decide, because a request for key has failed.
func (b *Budget) fail(key string, err error) {
	if bad, ok := errors.AsType[*keyError](err); ok {
		key = bad.key
	}
	if b.state.failed(key, b.now()) {
		b.log(slog.LevelWarn, "redisbudget: Redis failed, so the local budget decides", slog.Any("error", err))
		notify(b.wake)
	}
}

// failed reports whether it ended shared.
func (s *state) failed(key string, now time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.phase.CompareAndSwap(int32(shared), int32(local)) {
		return false
	}
	s.key = key
	// If Redis fails again soon, each pause is longer than the one before.
	if now-s.recovered > steady {
		s.wait = 0
	}
	s.delayProbe(now)
	return true
}

// delayProbe chooses the time of the next probe, not the same in all processes.
// s.mu is held.
func (s *state) delayProbe(now time.Duration) {
	s.wait = min(max(2*s.wait, minProbe), maxProbe)
	s.probeAt = now + s.wait/2 + rand.N(s.wait/2)
}

// probe lets the shared budget decide again if Redis works.
func (b *Budget) probe(ctx context.Context) {
	s := &b.state
	s.mu.Lock()
	key, due := s.key, s.load() == local && b.now() >= s.probeAt
	s.mu.Unlock()
	if !due {
		return
	}
	err := b.probeKey(ctx, key)
	if b.state.probed(b.now(), err) {
		b.log(slog.LevelInfo, "redisbudget: Redis works again, so the shared budget decides")
	}
}

// probeKey returns nil if the script works for key within the Timeout.
func (b *Budget) probeKey(ctx context.Context, key string) error {
	connecting, connected := context.WithTimeout(ctx, b.connectTimeout())
	defer connected()
	// Connecting may take longer than the timeout, and go-redis drops a
	// connection that is not ready in time. So without this, no probe would
	// succeed. The error may be about another server of the cluster, so the
	// script decides.
	_ = b.connect(connecting)

	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	_, err := b.exchange(ctx, []request{{key: key}})
	return err
}

// probed records the result of a probe, and reports whether it ended local.
func (s *state) probed(now time.Duration, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.delayProbe(now)
		return false
	}
	s.recovered = now
	return s.phase.CompareAndSwap(int32(local), int32(shared))
}

func (b *Budget) log(level slog.Level, message string, attrs ...slog.Attr) {
	// slog.SetDefault may be called after New.
	cmp.Or(b.logger, slog.Default()).LogAttrs(context.Background(), level, message, attrs...)
}

// workers are the goroutines of a Budget.
type workers struct {
	mu       sync.Mutex
	finished bool
	wg       sync.WaitGroup
}

// start starts a goroutine, unless finish was called.
func (w *workers) start(f func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.finished {
		w.wg.Go(f)
	}
	return !w.finished
}

// finish waits for all goroutines.
func (w *workers) finish() {
	w.mu.Lock()
	w.finished = true
	w.mu.Unlock()
	w.wg.Wait()
}
