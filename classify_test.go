package httpretry_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/errno"
)

const (
	final       = httpretry.Final
	transient   = httpretry.Transient
	unprocessed = httpretry.Unprocessed
)

// Hazard K8: every possible status.
func TestClassifyStatus(t *testing.T) {
	want := map[int]httpretry.Outcome{
		408: transient, 425: unprocessed, 429: transient}
	for status := 500; status <= 599; status++ {
		want[status] = transient
	}
	for _, status := range []int{501, 505, 506, 507, 508, 510, 511} {
		want[status] = final
	}
	for status := -1; status <= 1000; status++ {
		resp := &http.Response{StatusCode: status, Header: http.Header{}}
		assert.Equal(t, want[status], httpretry.Classify(resp.Request, resp, nil), status)

		resp.Header.Set("X-Should-Retry", "false")
		assert.Equal(t, final, httpretry.Classify(resp.Request, resp, nil), "%d, refused", status)
		resp.Header.Set("X-Should-Retry", "false, false") // two lines that a proxy has joined
		assert.Equal(t, final, httpretry.Classify(resp.Request, resp, nil),
			"%d, refused twice", status)

		resp.Header.Set("X-Should-Retry", " True ")
		promoted := want[status]
		if promoted == final && status >= 400 {
			promoted = transient
		}
		assert.Equal(t, promoted, httpretry.Classify(resp.Request, resp, nil),
			"%d, asked for", status)
	}
}

func TestClassifyResponse(t *testing.T) {
	sent := func(name, value string) *http.Request {
		return &http.Request{Method: "POST", Header: http.Header{name: {value}}}
	}
	keyed := sent("Idempotency-Key", "k")
	for _, tt := range []struct {
		name    string
		request *http.Request
		status  int
		header  http.Header
		want    httpretry.Outcome
	}{
		{"conflict", sent("Content-Type", "text/plain"), 409, nil, final},
		{"conflict, empty key", sent("Idempotency-Key", ""), 409, nil, final},
		{"conflict, key", keyed, 409, nil, transient},
		{"conflict, other key", sent("X-Idempotency-Key", "k"), 409, nil, transient},
		{"conflict, no request", nil, 409, nil, final},
		{"too large", nil, 413, nil, final},
		{"too large for now", nil, 413, newHeader("Retry-After", "10"), transient},
		{"too large, garbage", nil, 413, newHeader("Retry-After", "soon"), final},
		{"Stripe's refusal", nil, 503, newHeader("Stripe-Should-Retry", "false"), final},
		{"Stripe's wish", nil, 404, newHeader("Stripe-Should-Retry", "true"), transient},
		{"Stripe's wish, on a success", nil, 204, newHeader("Stripe-Should-Retry", "true"), final},
		{"key reuse", keyed, 422, nil, final},
		{"stored response", keyed, 500, newHeader("Idempotent-Replayed", "true"), final},
		{"stored response, Stripe's wish", keyed, 409,
			newHeader("Idempotent-Replayed", "true", "Stripe-Should-Retry", "true"), final},
		{"not stored", keyed, 500, newHeader("Idempotent-Replayed", "false"), transient},
		{"too early", sent("Early-Data", "0"), 425, nil, unprocessed},
		{"too early for the client behind", sent("Early-Data", "1"), 425, nil, final},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp := &http.Response{StatusCode: tt.status, Header: tt.header}
			assert.Equal(t, tt.want, httpretry.Classify(tt.request, resp, nil))
		})
	}
}

// Policy.Outcome is Classify with the policy's own header for keys. It does not
// ask the policy's Classify, which may call it.
func TestOutcomeOfPolicy(t *testing.T) {
	policy := httpretry.Policy{IdempotencyHeader: "x-line-retry-key"}
	outcome := policy.Outcome
	policy.Classify = func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
		return policy.Outcome(req, resp, err)
	}
	for name, classify := range map[string]func(
		*http.Request, *http.Response, error) httpretry.Outcome{
		"Outcome": outcome, "Classify": policy.Classify,
	} {
		conflict := func(key, value string) httpretry.Outcome {
			req := &http.Request{Method: "POST", Header: http.Header{key: {value}}}
			return classify(req, &http.Response{StatusCode: 409}, nil)
		}
		for _, key := range []string{
			"X-Line-Retry-Key", "X-LINE-Retry-Key", "Idempotency-Key", "X-Idempotency-Key",
		} {
			assert.Equal(t, transient, conflict(key, "k"), "%s: %s", name, key)
			assert.Equal(t, final, conflict(key, ""), "%s: %s", name, key)
		}
		assert.Equal(t, final, conflict("X-Other", "k"), name)
		assert.Equal(t, final, classify(nil, &http.Response{StatusCode: 409}, nil), name)
		assert.Equal(t, final, classify(nil, &http.Response{StatusCode: 503,
			Header: http.Header{"X-Should-Retry": {"false"}}}, nil), name)
		assert.Equal(t, transient, classify(nil, &http.Response{StatusCode: 503}, nil), name)
		assert.Equal(t, transient, classify(nil, nil, io.EOF), name)
	}
	var zero httpretry.Policy
	req := &http.Request{Header: http.Header{"X-Line-Retry-Key": {"k"}}}
	assert.Equal(t, final, zero.Outcome(req, &http.Response{StatusCode: 409}, nil))
}

func TestClassifyError(t *testing.T) {
	idleClosed := errors.New("http: server closed idle connection")
	goAway := errors.New("http2: Transport received Server's graceful shutdown GOAWAY")
	handshakeTimedOut := errors.New("net/http: TLS handshake timeout")
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for _, tt := range []struct {
		err  error
		want httpretry.Outcome
	}{
		{dial(errno.ConnRefused), unprocessed},
		{dial(errors.New("no route to host")), unprocessed},
		{dial(os.ErrDeadlineExceeded), unprocessed},
		{dial(&net.DNSError{IsTemporary: true}), unprocessed},
		{dial(&net.DNSError{IsTimeout: true}), unprocessed},
		{dial(&net.DNSError{Err: "server misbehaving"}), unprocessed},
		{dial(&net.DNSError{IsNotFound: true}), final},
		{&net.DNSError{IsNotFound: true}, final}, // of a dial function
		{&net.DNSError{IsTemporary: true}, transient},
		{dial(&net.AddrError{Err: "invalid port"}), final},
		{&net.OpError{Op: "proxyconnect", Err: dial(errno.ConnRefused)}, unprocessed},
		{&net.OpError{Op: "socks connect", Err: errors.New("unknown error connection refused")},
			unprocessed},
		{&net.OpError{Op: "read", Err: errno.ConnReset}, transient},
		{&net.OpError{Op: "write", Err: errno.BrokenPipe}, transient},
		{&net.OpError{Op: "readfrom", Err: net.ErrClosed}, transient},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: handshake failure")}, final},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: internal error")}, transient},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: bad record MAC")}, transient},
		{fmt.Errorf("readLoopPeekFailLocked: %w",
			&net.OpError{Op: "remote error", Err: errors.New("tls: certificate required")}), final},
		{fmt.Errorf("readLoopPeekFailLocked: %w",
			&net.OpError{Op: "remote error", Err: errors.New("tls: internal error")}), unprocessed},
		{&tls.CertificateVerificationError{Err: errors.New("expired")}, final},
		{x509.UnknownAuthorityError{}, final},
		{x509.HostnameError{Certificate: &x509.Certificate{}}, final},
		{x509.CertificateInvalidError{}, final},
		{tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, final},
		{http.ErrSchemeMismatch, final},
		{context.Canceled, final},
		{fmt.Errorf("wrapped: %w", context.Canceled), final},
		{fmt.Errorf("wrapped: %w", &http.MaxBytesError{Limit: 10}), final},
		{http.ErrSkipAltProtocol, final},
		{context.DeadlineExceeded, transient}, // net/http's own timeouts look like it
		{io.EOF, transient},
		{io.ErrUnexpectedEOF, transient},
		{errors.New("anything else"), transient},
		{errors.Join(io.EOF, errors.New("unsupported protocol scheme \"x\"")), final},
		{errors.Join(io.EOF, io.ErrUnexpectedEOF), transient},
		{errors.Join(idleClosed, dial(errno.ConnRefused)), unprocessed},
		{errors.Join(idleClosed, contract.ErrReset), transient},
		{errors.Join(dial(errno.ConnRefused), contract.ErrReset), transient},
		{fmt.Errorf("layer: %w", errors.Join(goAway, contract.ErrReset)), transient},
		{fmt.Errorf("%w, then %w", dial(errno.ConnRefused), contract.ErrReset), transient},
		{errors.Join(httpretry.WithOutcome(io.EOF, unprocessed), contract.ErrReset), transient},
		{errors.Join(handshakeTimedOut, errors.Join(idleClosed, contract.ErrReset)), transient},
		{errors.Join(contract.ErrReset, context.Canceled), transient}, // of a hedging layer
		{errors.Join(dial(errno.ConnRefused), context.Canceled), transient},
		{errors.Join(x509.UnknownAuthorityError{}, context.Canceled), final},
		{errors.Join(context.Canceled, context.Canceled), final},
		{errors.Join(errors.Join(contract.ErrReset, context.Canceled)), transient},
		{errors.Join(errors.Join(unknownHost, context.Canceled), contract.ErrReset), final},
		{httpretry.WithOutcome(errors.Join(idleClosed, contract.ErrReset), unprocessed),
			unprocessed}, // a layer that knows both
		{wrapsNothing{io.EOF}, transient},
		{wrapsNothings{io.EOF}, transient},
		{errors.New(
			"http2: Transport: cannot retry err [stream error: stream ID 1; REFUSED_STREAM; " +
				"received from peer] after Request.Body was written; define Request.GetBody to " +
				"avoid this error"), transient},
	} {
		t.Run(tt.err.Error(), func(t *testing.T) {
			assert.Equal(t, tt.want, httpretry.Classify(nil, nil, tt.err))
		})
	}
}

// A layer may wrap the errors of net/http. An error by which a retry is pointless
// is found inside. An error that proves that the request was not processed counts
// only if it is the outermost, since an inner one may be about another request of
// the layer.
func TestClassifyWrappedTexts(t *testing.T) {
	for name, wrap := range map[string]func(error) error{
		"fmt.Errorf":  func(err error) error { return fmt.Errorf("layer: %w", err) },
		"errors.Join": func(err error) error { return errors.Join(errors.New("failed"), err) },
		"twice": func(err error) error {
			return fmt.Errorf("outer: %w", fmt.Errorf("inner: %w", err))
		},
	} {
		for text, want := range map[string]httpretry.Outcome{
			`unsupported protocol scheme "ftp"`:   final,
			"http: no Host in request URL":        final,
			`net/http: invalid method "A B"`:      final,
			"http: server closed idle connection": transient,
		} {
			got := httpretry.Classify(nil, nil, wrap(errors.New(text)))
			assert.Equal(t, want, got, "%s: %s", name, text)
		}
	}
}

// wrapsNothing and wrapsNothings have an Unwrap method that returns no error.
type (
	wrapsNothing  struct{ error }
	wrapsNothings struct{ error }
)

func (wrapsNothing) Unwrap() error    { return nil }
func (wrapsNothings) Unwrap() []error { return []error{nil} }

// Each entry of errorTexts matches a line of test/testdata/errortexts.txt, and
// each line an entry. TestFaults in package test shows that net/http returns
// errors with these texts.
func TestErrorTexts(t *testing.T) {
	texts, err := os.ReadFile("test/testdata/errortexts.txt")
	require.NoError(t, err)
	matched, entries := map[int]bool{}, 0
	for line := range strings.Lines(string(texts)) {
		var entry int
		entry, entries = httpretry.KnownText(errors.New(strings.TrimSuffix(line, "\n")))
		assert.NotEqual(t, -1, entry, "no entry matches %s", line)
		matched[entry] = true
	}
	for entry := range entries {
		assert.True(t, matched[entry], "no line matches entry %d", entry)
	}
}

func TestOutcomeString(t *testing.T) {
	for outcome, want := range map[httpretry.Outcome]string{
		0: "final", 1: "transient", 2: "unprocessed", 3: "Outcome(3)",
	} {
		assert.Equal(t, want, outcome.String())
		text, err := json.Marshal(outcome)
		require.NoError(t, err)
		assert.Equal(t, strconv.Quote(want), string(text))
	}
}

// Policy.Classify may call a success Unprocessed. The caller can still read the
// body afterward. An Outcome out of range counts as Final.
func TestClassifySeesTheResponse(t *testing.T) {
	for outcome, want := range map[httpretry.Outcome]int{unprocessed: 2, 7: 1} {
		policy := contract.RetryEvery(0)
		policy.Classify = func(_ *http.Request, resp *http.Response, _ error) httpretry.Outcome {
			if resp.Header.Get("X-State") == "warming up" {
				return outcome
			}
			return final
		}
		base := contract.Play(contract.Status(200, "X-State", "warming up"), s200)
		resp, err := contract.With(t, base, policy).
			RoundTrip(contract.Request(t, "POST", "http://a.test/", "text"))
		require.NoError(t, err)
		assert.Equal(t, "body of 200", contract.ReadBody(t, resp))
		assert.Len(t, base.Attempts(), want)
	}
}

// An error that has an Outcome, of its own or by WithOutcome, is classified by
// it, even if it is wrapped, whatever else it wraps, and among joined errors that
// are less careful.
func TestWithOutcome(t *testing.T) {
	wraps := map[string]func(error) error{
		"itself":  func(err error) error { return err },
		"wrapped": func(err error) error { return fmt.Errorf("layer: %w", err) },
		"joined with a refusal": func(err error) error {
			return errors.Join(contract.ErrRefused, err)
		},
	}
	with := func(cause error) func(httpretry.Outcome) error {
		return func(o httpretry.Outcome) error { return httpretry.WithOutcome(cause, o) }
	}
	kinds := map[string]func(httpretry.Outcome) error{
		"own":     func(o httpretry.Outcome) error { return outcomeError{o} },
		"reset":   with(contract.ErrReset),
		"refused": with(contract.ErrRefused),
		"cancel":  with(context.Canceled),
		"another": with(httpretry.WithOutcome(io.EOF, transient)),
		"joined":  with(errors.Join(contract.ErrReset, outcomeError{transient})),
	}
	for name, wrap := range wraps {
		for kind, fails := range kinds {
			for _, tt := range []struct {
				outcome, want httpretry.Outcome
				get, post     int // attempts
				reason        httpretry.Reason
			}{
				{final, final, 1, 1, httpretry.ReasonPermanent},
				{transient, transient, 5, 1, httpretry.ReasonNotIdempotent},
				{unprocessed, unprocessed, 5, 5, httpretry.ReasonAttempts},
				{unprocessed + 1, final, 1, 1, httpretry.ReasonPermanent},
			} {
				t.Run(fmt.Sprintf("%s/%s/%v", name, kind, tt.outcome), func(t *testing.T) {
					failure := fails(tt.outcome)
					err := wrap(failure)
					assert.Equal(t, tt.want, httpretry.Classify(nil, nil, err))
					for method, want := range map[string]int{"GET": tt.get, "POST": tt.post} {
						base, events := contract.Play(contract.Fails(err)), new(contract.Record)
						_, got := contract.Recorded(t, base, contract.RetryEvery(0), events).
							RoundTrip(contract.Request(t, method, "http://a.test/", "text"))
						require.ErrorIs(t, got, failure)
						assert.Len(t, base.Attempts(), want, method)
						if method == "POST" {
							assert.Equal(t, tt.reason, events.Reason())
						}
					}
				})
			}
		}
	}
	assert.NoError(t, httpretry.WithOutcome(nil, final))
}

// An error of WithOutcome shows all of the error that it wraps.
func TestWithOutcomeShowsItsError(t *testing.T) {
	err := httpretry.WithOutcome(contract.ErrReset, final)
	assert.Equal(t, contract.ErrReset.Error(), err.Error())
	assert.Same(t, contract.ErrReset, errors.Unwrap(err))
	op, ok := errors.AsType[*net.OpError](fmt.Errorf("layer: %w", err))
	assert.True(t, ok)
	assert.Same(t, contract.ErrReset, op)

	for cause, want := range map[error]bool{
		contract.ErrReset: false, io.EOF: false,
		os.ErrDeadlineExceeded: true, fmt.Errorf("layer: %w", os.ErrDeadlineExceeded): true,
	} {
		base := contract.Play(contract.Fails(httpretry.WithOutcome(cause, final)))
		client := &http.Client{Transport: contract.New(t, httpretry.Config{Base: base})}
		_, err := client.Do(newGet(t))
		urlErr, ok := errors.AsType[*url.Error](err)
		require.True(t, ok)
		assert.Equal(t, want, urlErr.Timeout(), "%v", cause)
	}
}

// Policy.Classify gets the request as the attempt has sent it, and either its
// response or its error.
func TestClassifyGetsTheRequest(t *testing.T) {
	type seen struct {
		path, key, attempt string
		status             int
		err                error
	}
	var got []seen
	policy := contract.RetryEvery(0)
	policy.NewIdempotencyKey = func(*http.Request) string { return "k" }
	policy.Classify = func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
		s := seen{path: req.URL.Path, key: req.Header.Get("Idempotency-Key"),
			attempt: req.Header.Get("Retry-Attempt"), err: err}
		if resp != nil {
			s.status = resp.StatusCode
		}
		got = append(got, s)
		return httpretry.Classify(req, resp, err)
	}
	base := contract.Play(s409, contract.Fails(io.EOF), s201)
	contract.Send(t, contract.With(t, base, policy),
		contract.Request(t, "POST", "http://a.test/orders", "text"))
	assert.Equal(t, []seen{
		{"/orders", "k", "", 409, nil},
		{"/orders", "k", "1", 0, io.EOF},
		{"/orders", "k", "2", 201, nil},
	}, got)
}

// A 421 is Unprocessed only if the retry gets another connection. net/http uses
// any other connection again.
func TestMisdirected(t *testing.T) {
	for name, tt := range map[string]struct {
		protoMajor int
		closes     bool
		want       httpretry.Outcome
	}{
		"HTTP/1, closes":     {1, true, unprocessed},
		"HTTP/1, keep-alive": {1, false, final},
		"HTTP/2":             {2, false, final},
		"HTTP/2, closes":     {2, true, final},
		"HTTP/3":             {3, false, final},
	} {
		resp := &http.Response{StatusCode: 421, ProtoMajor: tt.protoMajor, Close: tt.closes}
		assert.Equal(t, tt.want, httpretry.Classify(nil, resp, nil), name)
	}
}

// newHeader returns a header of names and values in turn.
func newHeader(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}
