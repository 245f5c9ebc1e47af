package httpretry

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"time"

	"github.com/seed421102f4/httpretry/internal/defaults"
	"github.com/seed421102f4/httpretry/internal/fielderr"
	"github.com/seed421102f4/httpretry/strategies"
)

// A shorter limit is most likely a number without its unit.
const minLimit = time.Millisecond

// Policy determines when and how requests to a host are retried. A zero field
// means the default that its comment names. A negative value is valid only if
// the comment names its meaning. A positive duration of less than a millisecond
// is not valid. The functions may be called concurrently.
type Policy struct {
	_ [0]func() // no unkeyed literals, no comparison

	// isArgument is true in the argument of a function of WithPolicyFunc, and in
	// a result that was made from it.
	isArgument bool

	// MaxAttempts is the maximum number of attempts, the first included. 0 means
	// 3; 1 means no retries; negative means no limit.
	MaxAttempts int

	// Backoff determines the waits between attempts. Nil means
	// strategies.DecorrelatedV2{Median: 500ms, Max: 30s}. After a 429 (Too Many
	// Requests), and while the host has not succeeded since an earlier failure,
	// it means the same with a Median of 1.5s.
	Backoff strategies.Strategy

	// RetryAfter returns the wait that a response asks for, if any. It is called
	// for each response that is not a success: from 400 on, or if Classify does
	// not return Final. A wait of 0 or less means none, and one of more than 100
	// years means 100 years. Nil means that of the function [RetryAfter].
	RetryAfter func(*http.Response) (wait time.Duration, ok bool)

	// MaxRetryAfter is the longest wait that a server may ask for, in the
	// response to this request or to another one (see [Cooldown]). A longer
	// wait ends the request. 0 means 60s; negative means no limit.
	MaxRetryAfter time.Duration

	// AttemptTimeout limits the time from the start of an attempt until its
	// response headers, and what ReadAhead reads, have arrived. That includes a
	// wait for a connection and sending the request's body, so for uploads set
	// http.Transport.ResponseHeaderTimeout instead. 0 means no timeout. If it
	// expires while Base reads a body without GetBody, the body is closed and the
	// request fails. That Close must unblock the Read: see docs/recipes.md.
	AttemptTimeout time.Duration

	// ReadAhead is how many bytes of a response's body are read before RoundTrip
	// returns, within AttemptTimeout and the context. A body that breaks off or
	// stalls within them is a failed attempt, even after a 200. If it is not
	// retried, RoundTrip returns the response with the bytes that have arrived,
	// and Read then returns the error. But if the caller has left, or an outer
	// RetryTransport sends the request, it returns the error. A longer body begins
	// with these bytes, and the rest is read as without ReadAhead. [Peek] shows
	// the bytes to Classify.
	//
	// A text/event-stream is only read up to the end of its first event. ReadAhead
	// ignores some other types of streams, such as gRPC, as well as HEAD, CONNECT,
	// 101, 204, 304, 411, and responses that come while a streamed body is still
	// being sent. If a status is retried, it waits for the body for at most 50 ms,
	// or ignores it if there is no Classify or RetryAfter. Any other stream is
	// delayed, so give its path a policy without ReadAhead. 0 means none.
	ReadAhead int64

	// MaxElapsed limits the time from the start of a request to the start of
	// its last retry. It does not cancel an attempt. 0 means no limit.
	MaxElapsed time.Duration

	Budget   Budget   // nil means a HostBudget that all policies of the RetryTransport share
	Cooldown Cooldown // for a first attempt while its host is cooling down

	// CooldownKey partitions a host's cool-down: only requests with the same key
	// share one. Nil means one cool-down for the host.
	CooldownKey func(*http.Request) string

	// Classify returns the Outcome of an attempt that got a response, whose body
	// it must not read (see [Peek]), or an error. If a header forbids a retry, it
	// may be called again with a copy without that header, and if the body broke
	// off (see ReadAhead), with the error. Nil means [Policy.Outcome].
	Classify func(*http.Request, *http.Response, error) Outcome

	// Idempotent reports whether a request is safe to send twice. A request
	// with a non-empty IdempotencyHeader always is. Nil means [Idempotent].
	Idempotent func(*http.Request) bool

	// NewIdempotencyKey returns a key for all attempts of a request that is not
	// idempotent without one, or "" for none. Nil means none. See [RandomKey].
	NewIdempotencyKey func(*http.Request) string
	IdempotencyHeader string // of the key; "" means "Idempotency-Key"

	// ReplayBuffer is how many bytes are kept of a body without GetBody while it
	// is sent. If more of it was read, the request is not retried. An *os.File is
	// read again instead. 0 means 64 KiB; negative means no buffer.
	ReplayBuffer int64

	// Resume requests the rest of a response's body if a Read of it fails and
	// Classify does not return Final for the error. The response must be:
	//
	//   - the 200 of a GET without a body, or the 206 of one for a single range,
	//   - with a Content-Length, and with a body that net/http did not unpack
	//     (set "Accept-Encoding: identity" if it would),
	//   - with a strong ETag or, without any ETag, a Last-Modified at least 60 s
	//     before its Date.
	//
	// The server must send the rest with the same validator. Otherwise, Read
	// returns the error of the broken body, in an [*Error] with
	// ReasonNotResumable.
	//
	// The policy limits resumes as it limits retries. An attempt that delivers 64
	// KiB starts MaxAttempts and Backoff over, so set MaxElapsed or a deadline,
	// too. See docs/recipes.md.
	Resume bool

	// ResumeSame reports whether next is of the same version as first if no
	// validator shows it, such as for a URL with a hash of the content. It must
	// not read the bodies. Nil means no.
	ResumeSame func(first, next *http.Response) bool

	// ResumeIdle limits how long a Read of a body that can be resumed waits for
	// bytes before the body counts as broken off. The Close of Base's body must
	// unblock its Read, as in net/http. 0 means no limit.
	ResumeIdle time.Duration
}

// Outcome returns the Outcome that p determines without its Classify, such as
// for cases that its Classify does not decide itself. It is that of the
// function [Classify], except that a key in p.IdempotencyHeader counts as well.
func (p Policy) Outcome(req *http.Request, resp *http.Response, err error) Outcome {
	keyHeader := cmp.Or(p.IdempotencyHeader, defaults.IdempotencyHeader)
	return classify(req, resp, err, http.CanonicalHeaderKey(keyHeader))
}

// resolvedPolicy is a Policy with its defaults filled in. Its Classify and its
// Idempotent stay nil for the default, and its Budget for the transport's own.
type resolvedPolicy struct {
	Policy
	key     string              // of Config.Policies, or ""
	given   Policy              // without the defaults
	patient strategies.Strategy // the default for a host that fails, or nil for Backoff
	err     error               // of a context's policy, if it is not valid

	plainAllowed bool // the result of Policy.allowsPlain
}

// Outcome is that of the Policy, without a copy, which would need a large stack.
func (p *resolvedPolicy) Outcome(req *http.Request, resp *http.Response, err error) Outcome {
	return classify(req, resp, err, p.IdempotencyHeader)
}

// checkedWithDefaults is withDefaults for the policy of a context, which New has
// not checked.
func (p Policy) checkedWithDefaults() *resolvedPolicy {
	r := p.withDefaults()
	r.err = fielderr.At("Policy", p.problems())
	return r
}

// withDefaults fills in the defaults.
func (p Policy) withDefaults() *resolvedPolicy {
	given := p
	p = p.withNumbers()
	var patient strategies.Strategy
	if p.Backoff == nil {
		p.Backoff = strategies.DecorrelatedV2{
			Median: defaults.Median, Max: defaults.MaxWait}
		patient = strategies.DecorrelatedV2{
			Median: defaults.MedianPatient, Max: defaults.MaxWait}
	}
	if p.IdempotencyHeader == "" {
		p.IdempotencyHeader = defaults.IdempotencyHeader
	}
	p.IdempotencyHeader = http.CanonicalHeaderKey(p.IdempotencyHeader)
	return &resolvedPolicy{
		Policy: p, given: given, patient: patient, plainAllowed: p.allowsPlain()}
}

// withNumbers fills in the defaults of the numbers that have one. A limit that
// is none becomes the largest number.
func (p Policy) withNumbers() Policy {
	switch {
	case p.MaxAttempts == 0:
		p.MaxAttempts = defaults.MaxAttempts
	case p.MaxAttempts < 0:
		p.MaxAttempts = math.MaxInt
	}
	switch {
	case p.MaxRetryAfter == 0:
		p.MaxRetryAfter = defaults.MaxRetryAfter
	case p.MaxRetryAfter < 0:
		p.MaxRetryAfter = math.MaxInt64
	}
	if p.ReplayBuffer == 0 {
		p.ReplayBuffer = defaults.ReplayBuffer
	}
	return p
}

// change returns the result of f for p, and an error if f has lowered a number
// to one that means a default or no limit. If f returns another policy than one
// made from its argument, all values mean the same as in any other Policy.
func (p Policy) change(f func(Policy) Policy) (Policy, error) {
	before := p.withNumbers()
	before.isArgument = true
	if p = f(before); !p.isArgument {
		return p, nil
	}
	p.isArgument = false
	// f has only switched Resume off.
	if !p.Resume && p.ResumeIdle == before.ResumeIdle {
		p.ResumeIdle = 0
	}
	var problems []error
	check := func(isValid bool, field string, value any, want string) {
		if !isValid {
			problems = append(problems, fielderr.AtField(field, fielderr.New(value, want)))
		}
	}
	// A number that means no limit becomes negative if f makes it larger.
	check(p.MaxAttempts > 0 || p.MaxAttempts < 0 && before.MaxAttempts == math.MaxInt,
		"MaxAttempts", p.MaxAttempts, "at least 1 from a WithPolicyFunc, or math.MaxInt for no limit")
	check(p.MaxRetryAfter > 0 || p.MaxRetryAfter < 0 && before.MaxRetryAfter == math.MaxInt64,
		"MaxRetryAfter", p.MaxRetryAfter, "a positive duration from a WithPolicyFunc, or math.MaxInt64 for no limit")
	check(p.ReplayBuffer != 0, "ReplayBuffer", p.ReplayBuffer,
		"at least 1 from a WithPolicyFunc, or a negative number for no buffer")
	return p, fielderr.Join(problems...)
}

// allowsPlain reports whether requests that follow p may be plain (see
// engine.isPlain).
func (p *Policy) allowsPlain() bool {
	switch p.Budget.(type) {
	case nil, *HostBudget, Unlimited:
	default:
		return false // Record of another type gets each attempt, and may panic
	}
	return p.Classify == nil && p.Idempotent == nil && p.ReadAhead == 0 &&
		p.AttemptTimeout == 0 && p.MaxElapsed == 0 && p.Cooldown == CooldownSend && !p.Resume
}

// Validate returns an error with one line for each invalid field, as [New]
// does.
func (p Policy) Validate() error {
	return fielderr.At("httpretry", fielderr.At("Policy", p.problems()))
}

// problems returns the errors in p, in the order of its fields.
func (p Policy) problems() error {
	var problems []error
	check := func(field string, err error) {
		problems = append(problems, fielderr.AtField(field, err))
	}
	if p.Backoff != nil {
		check("Backoff", strategies.Validate(p.Backoff))
	}
	// A negative MaxRetryAfter is valid.
	check("MaxRetryAfter", checkLimit(max(p.MaxRetryAfter, 0),
		fmt.Sprintf("0 for %v, or a negative duration for no limit", defaults.MaxRetryAfter)))
	check("AttemptTimeout", checkLimit(p.AttemptTimeout, "or 0 for no timeout"))
	if p.ReadAhead < 0 {
		check("ReadAhead", fielderr.New(p.ReadAhead, "a number of bytes, or 0 for none"))
	}
	check("MaxElapsed", checkLimit(p.MaxElapsed, "or 0 for no limit"))
	// A nil pointer in an interface is not nil, and would panic only later.
	if isNil(p.Budget) {
		check("Budget", fielderr.New(fmt.Sprintf("a nil %T", p.Budget),
			"no value for the default, or a usable Budget"))
	} else if v, ok := p.Budget.(interface{ Validate() error }); ok {
		check("Budget", v.Validate())
	}
	check("Cooldown", p.Cooldown.problem())
	if p.IdempotencyHeader != "" {
		check("IdempotencyHeader", checkHeaderName(p.IdempotencyHeader))
	}
	check("ResumeIdle", checkLimit(p.ResumeIdle, "or 0 for no limit"))
	if p.ResumeIdle >= minLimit && !p.Resume {
		check("ResumeIdle", fielderr.New(p.ResumeIdle, "0 without Resume"))
	}
	return fielderr.Join(problems...)
}

// checkLimit returns an error if d is neither 0 nor at least minLimit. The text
// others names the other values that are allowed.
func checkLimit(d time.Duration, others string) error {
	if d != 0 && d < minLimit {
		return fielderr.New(d, fmt.Sprintf("at least %v, %s", minLimit, others))
	}
	return nil
}

// isNil reports whether v is an interface value that holds a nil pointer or a
// nil function.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return (r.Kind() == reflect.Pointer || r.Kind() == reflect.Func) && r.IsNil()
}

// isIdempotent reports whether p considers req idempotent. A key in the
// policy's own header counts whatever Policy.Idempotent returns.
func (p *resolvedPolicy) isIdempotent(req *http.Request) bool {
	if p.Idempotent != nil {
		return p.Idempotent(req) || hasKeyIn(req.Header, p.IdempotencyHeader)
	}
	return hasIdempotentMethod(req) || hasKey(req.Header, p.IdempotencyHeader)
}

// newKey returns the result of NewIdempotencyKey, which may be "", and an error
// if that is not valid.
func (p *resolvedPolicy) newKey(req *http.Request) (string, error) {
	key := p.NewIdempotencyKey(req)
	if err := checkKeyValue(key); err != nil {
		return "", fmt.Errorf("Policy.NewIdempotencyKey: %w", err)
	}
	return key, nil
}
