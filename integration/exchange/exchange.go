package main

import (
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/strategies"
)

// protocol is how an exchange is sent.
type protocol string

const (
	http1     protocol = "HTTP/1"
	http1TLS  protocol = "HTTP/1 over TLS"
	http2TLS  protocol = "HTTP/2 over TLS"
	http2Bare protocol = "HTTP/2 without TLS"
)

func (p protocol) isHTTP2() bool { return p == http2TLS || p == http2Bare }

func (p protocol) isTLS() bool { return p == http1TLS || p == http2TLS }

// source is where the body of a request comes from.
type source string

const (
	noBody      source = "no body"
	inMemory    source = "in memory" // as http.NewRequest makes it
	stream      source = "stream"    // has no GetBody
	file        source = "file"      // an *os.File without GetBody
	makesNew    source = "GetBody makes readers"
	opensFiles  source = "GetBody opens files"       // each body is an *os.File
	seeksWraps  source = "GetBody seeks and wraps"   // one reader, in a new body each time
	seeksItself source = "GetBody seeks and returns" // the body of the request itself
)

func (s source) isShared() bool { return s == seeksWraps || s == seeksItself }

// manner is how the Reads of a body go.
type manner struct {
	piece   int           // most bytes of a Read
	pause   time.Duration // before a Read returns
	blockAt int           // the position at which Read blocks until Close; negative: none
	failAt  int           // the position at which Read fails; negative: none
	first   bool          // blockAt and failAt are for the request's own body
	later   bool          // and for those from GetBody
}

// act is the server's reaction to a request.
type act string

const (
	answers    act = "answer"
	cuts       act = "cut"            // closes the connection
	resets     act = "reset"          // closes it with a reset
	breaks     act = "half an answer" // then a stall, and the end of the connection or the stream
	refuses    act = "RST"            // resets the stream
	goesAway   act = "GOAWAY"         // says that the stream is not processed
	leavesSoon act = "graceful GOAWAY"
)

// step is the server's reaction to one request that arrives.
type step struct {
	read   int // bytes of the body before it acts; negative: all
	stall  time.Duration
	act    act
	status int    // of an answer
	stingy bool   // over HTTP/2, the flow-control window is not widened before it acts
	after  act    // of an answer: the fate of the connection or the stream, or answers for nothing
	code   uint32 // of refuses
}

func (s step) String() string {
	text := string(s.act)
	switch s.act {
	case answers, leavesSoon, breaks:
		text = fmt.Sprintf("%s %d", s.act, s.status)
		if s.after != answers {
			text += ", " + string(s.after)
		}
	case refuses:
		text = fmt.Sprintf("%s %d", s.act, s.code)
	}
	if s.read >= 0 {
		text += fmt.Sprintf(" after %d bytes", s.read)
	}
	if s.stingy {
		text += " within the window"
	}
	if s.stall > 0 {
		text += fmt.Sprintf(" and %v", s.stall)
	}
	return text
}

// idempotencyKey is who makes the key of a request.
type idempotencyKey string

const (
	noKey   idempotencyKey = "no key"
	hasKey  idempotencyKey = "key"
	makeKey idempotencyKey = "key of the policy" // for a method that needs one
)

// layering is the kind of layer between the RetryTransport and net/http's
// Transport.
type layering string

const (
	bare       layering = "bare"
	unwraps    layering = "layer with Unwrap"
	hides      layering = "layer without Unwrap"
	signs      layering = "layer that reads the body and rewinds it"
	challenges layering = "layer that answers a 401"
)

// exchange is one request with all that happens to it. Its seed determines it.
type exchange struct {
	seed   uint64
	proto  protocol
	reused bool // another request was sent before
	method string
	key    idempotencyKey
	expect bool // Expect: 100-continue
	body   source
	size   int
	length bool // ContentLength is stated
	manner manner
	base   layering
	policy httpretry.Policy
	cancel time.Duration // when the context ends; 0: late
	unread bool          // the caller closes the response without reading it
	script []step        // for the requests that arrive, in turn; later ones get a 200
}

// String describes the exchange in one line.
func (x *exchange) String() string {
	p := &x.policy
	parts := []string{fmt.Sprintf("seed %d: %s %s", x.seed, x.proto, x.method), string(x.base)}
	add := func(is bool, format string, values ...any) {
		if is {
			parts = append(parts, fmt.Sprintf(format, values...))
		}
	}
	add(x.reused, "reused")
	add(true, "%s", x.key)
	add(x.expect, "Expect")
	add(true, "%s", x.body)
	if x.body != noBody {
		m := x.manner
		add(true, "%d bytes", x.size)
		add(x.length, "ContentLength")
		add(x.body != inMemory, "pieces of %d", m.piece)
		add(m.pause > 0, "%v a Read", m.pause)
		add(m.blockAt >= 0, "blocks at %d (first %t, later %t)", m.blockAt, m.first, m.later)
		add(m.failAt >= 0, "fails at %d (first %t, later %t)", m.failAt, m.first, m.later)
	}
	add(true, "%d attempts", p.MaxAttempts)
	add(p.AttemptTimeout > 0, "timeout %v", p.AttemptTimeout)
	add(p.Budget == httpretry.Budget(contract.UsedUp{}), "no budget")
	add(p.ReplayBuffer != 0, "buffer %d", p.ReplayBuffer)
	add(p.ReadAhead != 0, "%d bytes read ahead", p.ReadAhead)
	add(x.cancel > 0, "cancel %v", x.cancel)
	add(x.unread, "response unread")
	return fmt.Sprintf("%s; server: %v", strings.Join(parts, ", "), x.script)
}

// isSafe reports whether the request may be sent again once a server has
// received its header.
func (x *exchange) isSafe() bool {
	return x.key != noKey || x.method != http.MethodPost && x.method != http.MethodPatch
}

// readsAhead reports whether half an answer is a failed attempt.
func (x *exchange) readsAhead() bool { return x.policy.ReadAhead > int64(len(answerBody)) }

func (x *exchange) hasGetBody() bool {
	return x.body == makesNew || x.body == opensFiles || x.body.isShared()
}

// draw is a source of random choices.
type draw struct{ *mathrand.Rand }

func (d draw) chance(percent int) bool { return d.IntN(100) < percent }

// upTo returns up to most, and small numbers as often as large ones.
func (d draw) upTo(most int) int { return d.IntN(1 + d.IntN(1+d.IntN(most+1))) }

func (d draw) millis(least, most int) time.Duration {
	return time.Duration(least+d.IntN(most-least+1)) * time.Millisecond
}

func one[T any](d draw, of ...T) T { return of[d.IntN(len(of))] }

// newExchange draws an exchange. In every second one, net/http itself sends the
// request again.
func newExchange(seed uint64) *exchange {
	d := draw{mathrand.New(mathrand.NewPCG(seed, 0))}
	x := &exchange{
		seed:   seed,
		proto:  one(d, http1, http1TLS, http2TLS, http2Bare),
		reused: d.chance(60),
		method: one(d, http.MethodGet, http.MethodPut, http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete),
		key:    one(d, noKey, noKey, hasKey, hasKey, makeKey),
		expect: d.chance(10),
		body:   one(d, noBody, inMemory, stream, stream, file, makesNew, makesNew, opensFiles, seeksWraps, seeksItself),
		size:   d.upTo(300 << 10),
		length: d.chance(50),
		base:   one(d, bare, bare, bare, unwraps, hides, signs, challenges),
		unread: d.chance(10),
	}
	if d.chance(20) {
		x.cancel = d.millis(1, 60)
	}
	x.drawPolicy(d)
	x.drawManner(d)
	for range d.IntN(4) {
		x.script = append(x.script, x.drawStep(d))
	}
	switch d.IntN(8) {
	case 0, 1:
		x.drawResend(d)
	case 2, 3:
		x.drawGoAway(d)
	case 4:
		x.drawHalf(d)
	}
	x.limit(d)
	return x
}

func (x *exchange) drawPolicy(d draw) {
	x.policy = httpretry.Policy{
		MaxAttempts:  1 + d.IntN(4),
		Backoff:      strategies.FullJitter{Base: time.Millisecond, Max: 5 * time.Millisecond},
		Budget:       httpretry.Unlimited{},
		ReplayBuffer: one[int64](d, 0, 0, -1, 1000, 1<<20),
		ReadAhead:    one[int64](d, 0, 0, int64(len(halfAnswer))-1, 64<<10),
	}
	if d.chance(40) {
		x.policy.AttemptTimeout = d.millis(10, 200)
	}
	if x.key == makeKey {
		x.policy.NewIdempotencyKey = httpretry.RandomKey
	}
	if d.chance(10) {
		x.policy.Budget = contract.UsedUp{}
	}
}

func (x *exchange) drawManner(d draw) {
	// Some 20 Reads at most, so that slow ones do not take long.
	m := manner{piece: max(1, x.size/20+d.IntN(32<<10)), blockAt: -1, failAt: -1}
	if d.chance(60) {
		m.pause = time.Duration(d.IntN(3000)) * time.Microsecond
	}
	switch d.IntN(10) {
	case 0:
		m.blockAt = d.upTo(x.size)
	case 1:
		m.failAt = d.upTo(x.size)
	}
	m.first, m.later = d.chance(60), d.chance(60)
	x.manner = m
}

func (x *exchange) drawStep(d draw) step {
	s := step{
		read:   one(d, 0, d.upTo(x.size), d.upTo(x.size), -1),
		act:    one(d, answers, answers, answers, cuts, resets, breaks),
		status: one(d, 503, 503, 429, 500, 200, 401),
		after:  one(d, answers, answers, cuts, resets),
	}
	if x.proto.isHTTP2() {
		s.act = one(d, answers, answers, answers, cuts, resets, breaks, refuses, refuses, goesAway, leavesSoon)
		s.after = one(d, answers, answers, refuses, cuts)
		s.code = one[uint32](d, faults.RefusedStream, faults.RefusedStream, faults.Cancel, faults.InternalError, faults.ProtocolError)
		// The window is 65535 bytes in the beginning.
		s.stingy = s.read >= 0 && s.read < 60_000 && d.chance(30)
	}
	if d.chance(20) {
		s.stall = d.millis(1, 40)
	}
	return s
}

// drawResend has net/http resend the request over HTTP/1, which it does if a
// connection that was used before ends without an answer.
func (x *exchange) drawResend(d draw) {
	x.proto, x.reused = one(d, http1, http1, http1TLS), true
	x.method, x.key = one(d, http.MethodPut, http.MethodPut, http.MethodPost), hasKey
	x.body = one(d, makesNew, opensFiles, seeksWraps, seeksWraps, seeksItself)
	x.size, x.length = 10_000+d.IntN(100_000), d.chance(20)
	x.drawManner(d)
	x.manner.later = true
	// A Read of a body that net/http got from GetBody may block.
	if d.chance(15) {
		x.body, x.manner.first, x.manner.blockAt = makesNew, false, d.upTo(x.size)
	}
	x.script = []step{{read: -1, act: cuts}, x.drawStep(d)}
	if d.chance(60) {
		x.script[1] = step{read: d.upTo(x.size / 2), act: answers, status: 503, after: one(d, answers, cuts)}
	}
}

// drawGoAway has net/http resend the request over HTTP/2.
func (x *exchange) drawGoAway(d draw) {
	x.proto, x.reused = one(d, http2TLS, http2Bare), d.chance(80)
	x.body = one(d, stream, makesNew, makesNew, opensFiles, seeksWraps, seeksItself)
	x.drawManner(d)
	if d.chance(50) {
		x.policy.MaxAttempts = 1
	}
	// A slow Read may be under way when the context ends.
	if d.chance(40) {
		x.manner.pause, x.cancel = d.millis(5, 30), d.millis(1, 30)
		x.manner.piece = max(x.manner.piece, x.size/3)
	}
	x.script = append([]step{{read: one(d, 0, 0, d.upTo(x.size)), act: goesAway}}, x.script...)
}

// drawHalf has the server break off in its first answer, to a request without a
// body, so that Policy.ReadAhead determines what follows.
func (x *exchange) drawHalf(d draw) {
	x.body, x.cancel, x.policy.AttemptTimeout = noBody, 0, 0
	x.policy.MaxAttempts = 2 + d.IntN(3)
	x.script = []step{{read: -1, act: breaks, status: 200}}
}

// limit removes combinations that take long or that test nothing.
func (x *exchange) limit(d draw) {
	if x.body == noBody {
		x.size = 0
	}
	// Such a layer calls GetBody whether or not the request before is still
	// being sent. A GetBody that moves the reader of that request is wrong then
	// with any transport.
	for i := range x.script {
		if x.base == challenges && x.body == seeksWraps && x.script[i].status == 401 {
			x.script[i].read = -1
		}
	}
	// The Close of such a body need not end a Read.
	if x.body.isShared() {
		x.manner.blockAt = -1
	}
	if x.manner.blockAt >= 0 && x.cancel == 0 {
		x.cancel = d.millis(10, 100)
	}
	// Files are read by os.File.
	if x.body == file || x.body == opensFiles || x.body == inMemory || x.body == noBody {
		x.manner.blockAt, x.manner.failAt = -1, -1
	}
}
