package redisbudget

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A host is the state of one host in this process.
type host struct {
	name string       // in Budget.hosts; constant
	key  string       // in Redis; constant
	used atomic.Int64 // the value of hosts.added at the last use

	successes atomic.Int64 // since the last report
	refunds   atomic.Int64 // since the last report
	helped    atomic.Int64 // of the successes, those of retries that were charged
	lease     atomic.Pointer[lease]
	refused   atomic.Int64 // until then, on the clock of the Budget
	open      charges

	// The list of active hosts.
	listed atomic.Bool
	next   *host

	resting int // turns in a row without anything to report

	// No success was recorded before since, on the clock of the Budget. Only the
	// one that makes the host active may be a little older, because activate
	// reads the clock after it.
	since atomic.Int64

	mu      sync.Mutex // not for the counts
	running *call      // the call to Redis for withdrawals, if any
	waiting *call      // the one after that
}

// counted reports whether there is something to report.
func (h *host) counted() bool {
	return h.successes.Load() > 0 || h.refunds.Load() > 0 || h.helped.Load() > 0
}

// charges counts the charges of each budget for retries that have not ended. A
// retry that ends does not tell which budget has charged for it. So its end is
// assumed to be the one after which the shared budget allows fewer retries. A
// refund too many would cancel the charge of another process.
type charges struct {
	mu            sync.Mutex
	shared, local [maxCost + 1]int64 // by the cost of the retry
}

// add adds a charge.
func (c *charges) add(cost int64, byShared bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if byShared {
		c.shared[cost]++
	} else {
		c.local[cost]++
	}
}

// giveBack ends the charge of a retry that succeeded or was never sent, and
// returns which budget gets it back. Local charges come first. Neither does if
// the host was forgotten since.
func (c *charges) giveBack(cost int64) (toLocal, toShared bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.local[cost] > 0:
		c.local[cost]--
		return true, false
	case c.shared[cost] > 0:
		c.shared[cost]--
		return false, true
	}
	return false, false
}

// keep ends the charge of a retry that failed. Shared charges come first, so
// that a local one is not given back to the shared budget later.
func (c *charges) keep(cost int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shared[cost] > 0 {
		c.shared[cost]--
	} else {
		c.local[cost] = max(c.local[cost]-1, 0)
	}
}

// A lease holds retries that are charged and may be made until it ends. A nil
// lease has ended.
type lease struct {
	ends time.Duration // on the clock of the Budget
	left atomic.Int64  // their cost; negative: closed
}

// take takes retries for cost, if l has not ended and enough is left for them.
func (l *lease) take(now time.Duration, cost int64) bool {
	if l == nil || l.ends <= now {
		return false
	}
	for {
		n := l.left.Load()
		if n < cost {
			return false
		}
		if l.left.CompareAndSwap(n, n-cost) {
			return true
		}
	}
}

// put puts retries back, unless l has ended or is closed.
func (l *lease) put(now time.Duration, cost int64) bool {
	if l == nil || l.ends <= now {
		return false
	}
	for {
		n := l.left.Load()
		if n < 0 {
			return false
		}
		if l.left.CompareAndSwap(n, n+cost) {
			return true
		}
	}
}

// close ends l, and returns the cost of the retries left.
func (l *lease) close() int64 { return max(l.left.Swap(-1), 0) }

// A call withdraws from the lease or from Redis for all withdrawals that wait for
// it. What it gets does not pass through the lease, which a report may end.
type call struct {
	withdrawals []*withdrawal // guarded by host.mu until the call runs
	done        chan struct{} // closed at the end
	err         error         // the shared budget did not decide
}

// A withdrawal waits for a call. It is guarded by host.mu until the call is done.
type withdrawal struct {
	cost    int64
	granted bool
	gone    bool // it does not wait any more
}

var errNotShared = errors.New("the shared budget does not decide")

// withdrawShared asks the shared budget for a retry. An error means that it did
// not decide.
func (b *Budget) withdrawShared(ctx context.Context, h *host, cost int64) (bool, error) {
	if b.state.load() != shared {
		return false, errNotShared
	}
	now := b.now()
	if h.lease.Load().take(now, cost) {
		return true, nil
	}
	if now < time.Duration(h.refused.Load()) {
		return false, nil
	}
	select {
	case <-b.connected:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	timeout := time.NewTimer(b.timeout)
	defer timeout.Stop()
	c, w := b.join(h, cost)
	select {
	case <-c.done:
		return w.granted, c.err
	case <-ctx.Done():
		if h.leave(w) {
			return true, nil
		}
		return false, ctx.Err()
	case <-timeout.C:
		if h.leave(w) {
			return true, nil
		}
		err := fmt.Errorf("no answer within %v", b.timeout)
		b.fail(h.key, err)
		return false, err
	}
}

// leave ends the wait of w, and reports whether w was granted just before.
func (h *host) leave(w *withdrawal) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.gone = true
	return w.granted
}

// join adds a withdrawal to the next call of h. Withdrawals that arrive during
// a call share the one after it, so that each host has one call at a time.
func (b *Budget) join(h *host, cost int64) (*call, *withdrawal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting == nil {
		h.waiting = &call{done: make(chan struct{})}
	}
	c, w := h.waiting, &withdrawal{cost: cost}
	c.withdrawals = append(c.withdrawals, w)
	if h.running == nil {
		h.running, h.waiting = c, nil
		// The goroutine is not bound to the context of one of the withdrawals.
		if !b.workers.start(func() { b.serve(h, c) }) {
			h.running = nil
			c.err = errNotShared
			close(c.done)
		}
	}
	return c, w
}

// serve makes calls for h as long as withdrawals wait.
func (b *Budget) serve(h *host, c *call) {
	for c != nil {
		var need, granted int64
		h.mu.Lock()
		for _, w := range c.withdrawals {
			if !w.gone {
				need += w.cost
			}
		}
		h.mu.Unlock()
		if need > 0 {
			granted, c.err = b.withdraw(h, need)
		}
		h.mu.Lock()
		for _, w := range c.withdrawals {
			if !w.gone && w.cost <= granted {
				granted -= w.cost
				w.granted = true
			}
		}
		close(c.done)
		c, h.waiting = h.waiting, nil
		h.running = c
		h.mu.Unlock()
		b.putBack(h, granted)
	}
}

// putBack gives charges back, to the lease of h or else to Redis.
func (b *Budget) putBack(h *host, cost int64) {
	if cost == 0 {
		return
	}
	if !h.lease.Load().put(b.now(), cost) {
		h.refunds.Add(cost)
		b.activate(h)
	}
}

// withdraw takes retries that cost need from the lease, or asks Redis for them and
// a new lease. It returns how much of need is granted.
func (b *Budget) withdraw(h *host, need int64) (int64, error) {
	sent := b.now()
	switch {
	case b.state.load() != shared:
		return 0, errNotShared
	// The call before may have left enough, or found that there is nothing.
	case h.lease.Load().take(sent, need):
		return need, nil
	case sent < time.Duration(h.refused.Load()):
		return 0, nil
	}
	// The timeout begins before the report, which relies on it.
	ctx, cancel := context.WithTimeout(context.Background(), b.timeout)
	defer cancel()
	r := b.report(h)
	r.need, r.extra = need, max(b.lease-need, 0)
	replies, err := b.exchange(ctx, []request{r})
	if err != nil {
		b.fail(r.key, err)
		return 0, err
	}
	got := replies[0]
	// The server has looked at its clock after sent. So neither a refusal nor
	// a lease lasts longer than the server expects.
	if got.granted < need {
		h.refused.Store(int64(sent + b.flushInterval))
	}
	if extra := got.granted - need; extra > 0 {
		l := &lease{ends: sent + got.left}
		l.left.Store(extra)
		if old := h.lease.Swap(l); old != nil {
			h.refunds.Add(old.close())
		}
		b.activate(h)
	}
	return min(got.granted, need), nil
}
