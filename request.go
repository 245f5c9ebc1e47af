package httpretry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/seed421102f4/httpretry/internal/bounded"
	"github.com/seed421102f4/httpretry/internal/replay"
	"github.com/seed421102f4/httpretry/internal/respbody"
	"github.com/seed421102f4/httpretry/strategies"
)

// call is one request on its way through RoundTrip. It lives on RoundTrip's
// stack, or as a copy in a resumingBody: nothing else may keep a pointer to it.
type call struct {
	settings *settings
	values   *contextValues // of the request's context, or nil
	policy   *resolvedPolicy
	req      *http.Request // the caller's, never modified
	target   *host         // what the settings keep for the URL's host
	host     string        // key of the state that is kept per host
	key      string        // the idempotency key that was made, if any
	body     replay.Body

	idempotent bool          // the request is safe to send twice
	retried421 bool          // a 421 was retried
	charged    bool          // the budget has charged for the current or next attempt
	attempts   int           // started so far
	start      time.Duration // since settings.created; 0 unless Observe or MaxElapsed needs it
	attempt    *attempt      // the current copy, nil while it is the caller's own request
	progress   progress
	resp       *http.Response // of the current attempt
	lastStatus int            // of the response that was discarded, or 0
	waits      waits
	cooldown   callCooldown
	resumed    *resumingBody // the body whose rest is requested, or nil
}

// progress is how far a call has come:
//
//	progressAttempt  before or in an attempt, or in the decision after it
//	progressWaiting  another attempt is to follow
//	progressDone     no clean-up is left to cleanUpAfterPanic
type progress uint8

const (
	progressAttempt progress = iota
	progressWaiting
	progressDone
)

// waits are what determines the waits of a request, and how long they took.
type waits struct {
	backoff, throttled strategies.Sequence // nil until they are needed

	of            *http.Response // the response that asked for the next ones
	asked, spread time.Duration

	waited time.Duration // since the last Event
}

// begin prepares c before its first attempt. An error ends the request before
// anything is sent.
func (c *call) begin() error {
	ctx := c.req.Context()
	c.values = fromContext(ctx)
	c.target = c.settings.lookUp(c.req.URL)
	c.policy, c.host = c.target.policy, c.target.key
	// The policy of WithPolicy replaces the host's.
	if c.values != nil && c.values.policy != nil {
		c.policy = c.values.policy
		if err := c.policy.problemWith(c.settings); err != nil {
			return &Error{Reason: ReasonPermanent, Err: err}
		}
	}
	p := c.policy
	if c.callerCanceled() {
		// The error of a context that is done is its own, as from net/http.
		if ctx.Err() != nil {
			return c.canceled(nil)
		}
		return &Error{Reason: ReasonCanceled, Err: errRequestCanceled}
	}
	c.idempotent = p.isIdempotent(c.req) || c.values != nil && c.values.idempotent
	// Without a header map, there is no place for a key. net/http fails such a
	// request.
	if !c.idempotent && p.NewIdempotencyKey != nil && c.req.Header != nil {
		if err := c.makeKey(); err != nil {
			return &Error{Reason: ReasonPermanent, Err: err}
		}
	}
	c.body.Prepare(c.req, max(p.ReplayBuffer, 0))
	// Most requests need no clock. time.Since costs half of what time.Now does.
	if c.settings.observe != nil || p.MaxElapsed > 0 {
		c.start = time.Since(c.settings.created)
	}
	if p.Cooldown == CooldownRetries {
		return nil
	}
	return c.awaitFirstAttempt()
}

// makeKey makes an idempotency key, unless the policy returns none.
func (c *call) makeKey() error {
	c.key = c.policy.NewIdempotencyKey(c.req)
	if err := checkKey(c.key); err != nil {
		return fmt.Errorf("Policy.NewIdempotencyKey: %w", err)
	}
	c.idempotent = c.key != ""
	return nil
}

// awaitFirstAttempt waits until the host has cooled down. An error ends the
// request.
func (c *call) awaitFirstAttempt() error {
	reason, err := c.awaitCooldown(nil)
	if reason == ReasonNone {
		return nil
	}
	c.report(nil, err, 0, reason)
	// As in begin, the error of a context that is done is its own.
	if reason == ReasonCanceled && c.req.Context().Err() != nil {
		return err
	}
	return &Error{Reason: reason, Err: err}
}

// failUnsent ends a request that was never sent with err.
func (c *call) failUnsent(err error) (*http.Response, error) {
	c.progress = progressDone
	if c.req.Body == nil {
		return nil, err
	}
	// A RoundTripper closes the body on errors, too. Close may block.
	if closeErr := bounded.Close(respbody.MaxTime, c.req.Body); closeErr != nil {
		err = errors.Join(err, closeErr)
	}
	return nil, err
}

// maxAttempts returns how many attempts the request may have.
func (c *call) maxAttempts() int {
	if c.values != nil && c.values.withoutRetries {
		return 1
	}
	return c.policy.MaxAttempts
}

// outer returns the attempt of another RetryTransport in whose context the
// request is sent, or nil. A context that outlives its attempt, such as that
// of a Response's Request, does not count.
func (c *call) outer() *attemptContext {
	if c.values != nil && c.values.attempt != nil && c.values.attempt.inRoundTrip.Load() {
		return c.values.attempt
	}
	return nil
}

// priorAttempts returns how often the inbound request of a Middleware was sent
// before, if c belongs to one that is still being handled. Otherwise it is 0.
func (c *call) priorAttempts() int {
	if c.values != nil && c.values.inbound.isOpen() {
		return c.values.inbound.priorAttempts
	}
	return 0
}

// callerRetries reports whether a retry is left to a caller: an outer
// RetryTransport, or the client that has retried the inbound request. An
// Unprocessed request is retried here even if that client retries, because its
// retry would repeat the whole inbound request.
func (c *call) callerRetries(outcome Outcome) bool {
	return c.outer() != nil || outcome != Unprocessed && c.priorAttempts() > 0
}

// callerCanceled reports whether the caller has canceled the request. The
// error of an attempt does not tell: a timeout inside net/http looks like one
// of the caller's.
func (c *call) callerCanceled() bool {
	if c.req.Context().Err() != nil {
		return true
	}
	cancel := cancelChannel(c.req)
	// Most requests have no Cancel channel.
	if cancel == nil {
		return false
	}
	select {
	case <-cancel:
		return true
	default:
		return false
	}
}

// cancelChannel returns the request's Cancel channel. http.Client sets it for
// its Timeout if it does not know the transport (setRequestCancel).
func cancelChannel(req *http.Request) <-chan struct{} {
	//lint:ignore SA1019 net/http uses it
	return req.Cancel
}

// sentRequest returns the request as the last attempt sent it.
func (c *call) sentRequest() *http.Request {
	if c.attempt != nil {
		return &c.attempt.req
	}
	return c.req
}

// nextBackoff returns the policy's wait before the next attempt.
func (c *call) nextBackoff(resp *http.Response) time.Duration {
	strategy, sequence := c.policy.Backoff, &c.waits.backoff
	if c.policy.ThrottledBackoff != nil && statusIs(resp, http.StatusTooManyRequests) {
		strategy, sequence = c.policy.ThrottledBackoff, &c.waits.throttled
	}
	if *sequence == nil {
		*sequence = strategy.Start()
	}
	return max((*sequence)(), 0)
}

// timeLeft returns the longest wait after which an attempt may still start.
func (c *call) timeLeft(now time.Time) time.Duration {
	left := time.Duration(math.MaxInt64)
	if deadline, ok := c.req.Context().Deadline(); ok {
		// At the deadline itself, there is no time for an attempt.
		left = deadline.Add(-1).Sub(now)
	}
	if c.policy.MaxElapsed > 0 {
		left = min(left, c.policy.MaxElapsed-(now.Sub(c.settings.created)-c.start))
	}
	return left
}

// askedWait returns the wait that a response asks for, and the range of the
// jitter that is added to it. A response below 400 asks for no wait: there,
// Retry-After has another meaning.
func (c *call) askedWait(resp *http.Response) (asked, spread time.Duration) {
	if resp == nil || resp.StatusCode < 400 {
		return 0, 0
	}
	// The cool-down, the decision and the budget need it for one response.
	if w := &c.waits; w.of != resp {
		w.of, w.asked, w.spread = resp, 0, 0
		if asked, resolution, ok := retryAfter(resp.Header, time.Now); ok {
			w.asked, w.spread = asked, spreadFor(asked, resolution)
		}
	}
	return c.waits.asked, c.waits.spread
}

// uniform returns a random duration in (0, width].
func uniform(width time.Duration) time.Duration {
	if width <= 0 {
		return 0
	}
	return time.Duration(rand.Int64N(int64(width))) + 1
}

func (c *call) budget() Budget {
	if c.policy.Budget != nil {
		return c.policy.Budget
	}
	return c.settings.budget
}

// chargeBudget charges for a retry after resp, and reports whether the budget
// allows it. A retry after a 429 whose own wait is obeyed is free: the server
// has scheduled it.
func (c *call) chargeBudget(resp *http.Response) bool {
	if statusIs(resp, http.StatusTooManyRequests) {
		if asked, _ := c.askedWait(resp); asked > 0 {
			c.charged = false
			return true
		}
	}
	c.charged = c.budget().Withdraw(c.req.Context(), c.host)
	return c.charged
}

// rewindBody prepares the body of the next attempt. If there is no body to
// send, it takes back the charge for that attempt and returns false.
func (c *call) rewindBody(err error, outcome Outcome) bool {
	// If GetBody panics, the charge is taken back, too.
	c.progress = progressWaiting
	if c.body.Rewind(c.uploadIsOver(err, outcome)) {
		return true
	}
	c.progress = progressAttempt
	c.refundUnsent()
	return false
}

// refundUnsent takes back the charge for a retry that is not sent.
func (c *call) refundUnsent() {
	if c.charged {
		c.charged = false
		c.budget().Refund(c.host)
	}
}

// report passes the decision after an attempt to Config.Observe, if that is
// set.
func (c *call) report(resp *http.Response, err error, wait time.Duration, reason Reason) {
	if c.settings.observe != nil {
		c.observe(resp, err, wait, reason)
	}
}

// observe is report if Config.Observe is set. It is apart, so that the compiler
// inlines report, which saves 2 ns.
func (c *call) observe(resp *http.Response, err error, wait time.Duration, reason Reason) {
	// The attempt's own error does not explain why the body cannot be sent
	// again.
	if reason == ReasonNotReplayable && c.body.Err() != nil {
		err = c.body.Err()
	}
	e := Event{
		Request:  c.req,
		Response: resp,
		Err:      err,
		Attempt:  c.attempts,
		Elapsed:  time.Since(c.settings.created) - c.start,
		Waited:   c.waits.waited,
		Wait:     wait,
		Reason:   reason,
	}
	c.waits.waited = 0
	if c.resumed != nil {
		e.Request, e.Resuming, e.Offset = c.resumed.req, true, c.resumed.offset
	}
	c.settings.observe(c.req.Context(), e)
}

// finish returns the last attempt's result to the caller. With WaitOnBudget it
// waits first.
func (c *call) finish(resp *http.Response, err error, wait time.Duration, reason Reason) (*http.Response, error) {
	// fail releases the attempt, so it comes before the wait.
	if err != nil {
		err = c.fail(err, reason)
		c.sleep(wait, nil)
		return nil, err
	}
	if c.isSuccess(resp, reason) {
		c.settleSuccess(resp)
	}
	// The upload may continue while the caller reads the response, but nothing
	// is recorded any more.
	c.body.Finish()
	if c.policy.Resume {
		c.handOverResumable(resp, reason)
	} else {
		c.handOver(resp, reason, false)
	}
	// Only WaitOnBudget makes a response wait.
	if wait > 0 {
		// Reading ahead frees a connection. It would hide a tunnel's Write.
		if !isTunnel(c.sentRequest(), resp) {
			respbody.Buffer(resp)
		}
		c.sleep(wait, nil)
	}
	// This is after Buffer, so that a body that panics there is closed.
	c.progress = progressDone
	return resp, nil
}

// isSuccess reports whether resp shows that the host works: it is not a
// transient failure. One that the server forbids to retry may be either.
func (c *call) isSuccess(resp *http.Response, reason Reason) bool {
	return reason == ReasonSuccess || reason == ReasonPermanent ||
		reason == ReasonDoNotRetry && c.statusIsFinal(resp)
}

// statusIsFinal is apart from isSuccess, so that the compiler inlines
// isSuccess, which saves 2 ns.
func (c *call) statusIsFinal(resp *http.Response) bool {
	return classifyStatus(c.sentRequest(), resp, c.policy.IdempotencyHeader) == Final
}

// settleSuccess records a response that is not a transient failure.
func (c *call) settleSuccess(resp *http.Response) {
	budget := c.budget()
	// The host's own window saves a second lookup, which costs 25 ns. A policy
	// of WithPolicy may have another budget.
	if b, ok := budget.(*HostBudget); ok && c.policy == c.target.policy {
		b.depositTo(&c.target.window, c.host)
	} else {
		budget.Deposit(c.host)
	}
	if c.charged {
		refundSuccess(budget, c.host)
	}
	if resp.StatusCode < 400 {
		c.noteSuccess()
	}
}

// fail ends the request with an error: the attempt's own, if there was just
// one attempt and nothing is to be added.
func (c *call) fail(err error, reason Reason) error {
	c.release()
	// After a wait, the error is of the wait and not of the attempt.
	sentOnce := c.attempts == 1 && c.progress == progressAttempt
	c.progress = progressDone

	// An error with a hint tells users which field to set.
	unchanged := sentOnce && reason.hint() == "" && !isOwnError(err) && !c.hidesCancel(err, reason)
	switch {
	case reason == ReasonNotReplayable && c.body.Err() != nil:
		err = fmt.Errorf("%w; the body cannot be sent again: %w", err, c.body.Err())
	case unchanged:
		return err
	case reason == ReasonCanceled:
		err = c.canceled(err)
	}
	return &Error{Attempts: c.attempts, Reason: reason, Err: err}
}

// hidesCancel reports whether err does not show the cancel that caused it:
// net/http returns the context's error or its cause, never both, or the
// failure that the cancel led to.
func (c *call) hidesCancel(err error, reason Reason) bool {
	ctx := c.req.Context()
	return reason == ReasonCanceled && ctx.Err() != nil &&
		!(errors.Is(err, ctx.Err()) && errors.Is(err, context.Cause(ctx)))
}

// pause waits before the next attempt, and until its host has cooled down. If
// no attempt follows, it returns the Reason and the error that the request
// ends with; last is the error of the attempt before.
func (c *call) pause(wait time.Duration, last error) (Reason, error) {
	reason, err := ReasonCanceled, error(nil)
	if c.sleep(wait, nil) {
		reason, err = c.awaitCooldown(last)
	} else {
		err = c.canceled(last)
	}
	// The retry that the budget has charged for is not sent.
	if reason != ReasonNone {
		c.refundUnsent()
	}
	return reason, err
}

// sleep waits, but only until early is closed, and reports whether the caller
// is still waiting.
func (c *call) sleep(wait time.Duration, early <-chan struct{}) bool {
	if wait > 0 {
		begun := time.Since(c.settings.created)
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-early:
		case <-c.req.Context().Done():
		case <-cancelChannel(c.req):
		}
		c.waits.waited += time.Since(c.settings.created) - begun
	}
	return !c.callerCanceled()
}

// canceled returns the error of a request that its caller canceled. It
// satisfies errors.Is for the context's error and for its cause, of which
// net/http returns one or the other. The error of the attempt before the
// cancel is only in its text: Timeout must not report that.
func (c *call) canceled(last error) error {
	ctx := c.req.Context()
	ctxErr, cause := ctx.Err(), context.Cause(ctx)
	if ctxErr == nil {
		ctxErr, cause = errRequestCanceled, errRequestCanceled
	}
	// The error of an AttemptTimeout is a context.DeadlineExceeded, too.
	_, timedOut := errors.AsType[*attemptTimeout](last)
	if errors.Is(last, ctxErr) && errors.Is(last, cause) && !timedOut {
		return last
	}
	err := ctxErr
	if !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", ctxErr, cause)
	}
	if last != nil {
		return fmt.Errorf("%w (last attempt: %v)", err, last)
	}
	return c.afterAttempt(nil, err)
}

// afterAttempt adds the result of the last attempt to err, which occurred
// later.
func (c *call) afterAttempt(last, err error) error {
	switch {
	case last != nil && !errors.Is(err, last):
		return fmt.Errorf("%w (last attempt: %w)", err, last)
	case last == nil && c.lastStatus != 0:
		return fmt.Errorf("%w (last attempt: status %d)", err, c.lastStatus)
	}
	return err
}

// discard ends an attempt that is followed by another, so that nothing of it
// is held while the request waits.
func (c *call) discard(resp *http.Response) {
	c.lastStatus = 0
	if resp != nil {
		c.lastStatus = resp.StatusCode
		// The body is drained before the attempt is released, which would end
		// it.
		respbody.Discard(resp, c.attempt)
	}
	// Base may use one Response again and again.
	c.resp, c.waits.of = nil, nil
	c.attempt.Release()
}

// cleanUpAfterPanic runs last. It does nothing unless Base, a callback or a
// body's reader has panicked: then it releases what the request holds.
func (c *call) cleanUpAfterPanic() {
	if c.progress == progressDone {
		return
	}
	if c.progress == progressWaiting {
		c.refundUnsent()
	}
	respbody.Close(c.resp)
	c.release()
	if c.attempts == 0 && c.body.Direct() && c.req.Body != nil {
		_ = c.req.Body.Close() // the panic is what the caller gets
	}
}

// release ends the attempt, and then what waits for the body.
func (c *call) release() {
	c.attempt.Release()
	c.body.Abort()
}

// errRequestCanceled stands for a closed Request.Cancel, which has no error.
var errRequestCanceled = errors.New("request canceled")
