package httpretry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry/internal/defaults"
	"github.com/seed421102f4/httpretry/internal/retryafter"
)

// Outcome determines whether the request of an attempt may be retried.
type Outcome uint8

const (
	// Final means that a retry would not change the result.
	Final Outcome = iota
	// Transient means that a retry may succeed, but that the server may have
	// processed the request. The request must be idempotent to be retried.
	Transient
	// Unprocessed means that a retry may succeed, and that the server has not
	// processed the request. The request need not be idempotent to be retried.
	Unprocessed
)

// String returns "final", "transient" or "unprocessed".
func (o Outcome) String() string {
	switch o {
	case Final:
		return "final"
	case Transient:
		return "transient"
	case Unprocessed:
		return "unprocessed"
	default:
		return fmt.Sprintf("Outcome(%d)", uint8(o))
	}
}

// MarshalText returns the text of o, for JSON and logs.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Classify is the default for [Policy.Classify]. It returns the Outcome of an
// attempt that sent req and got either resp or err.
//
// Transient responses are 408, 429, and 5xx except 501, 505, 506, 507, 508, 510
// and 511; 413 with a Retry-After (RFC 9110 section 15.5.14); and 409 if req
// has an idempotency key, because another attempt with that key may be in
// progress. 425 is Unprocessed unless req has Early-Data: 1. 421 over HTTP/1 is
// Unprocessed, and retried once, if it closes its connection, so that a retry
// gets another one. Other responses are Final, and so is any with
// Idempotent-Replayed: true, which is stored. The header X-Should-Retry or
// Stripe-Should-Retry makes any response Final if it is "false", and a Final
// 4xx or 5xx that is not stored Transient if it is "true".
//
// An error that has an Outcome() Outcome method, or wraps one that has, such as
// that of [WithOutcome], determines its own Outcome. Errors that occur before
// the request can reach the server are Unprocessed. An error that a retry would
// get again is Final: that of an untrusted certificate, an unknown host, an
// invalid request or a canceled context, and an [http.MaxBytesError]. Others
// are Transient. An error that joins several, as [errors.Join] does, is Final
// if one of them is, and Unprocessed only if all are. A canceled context among
// others is Transient.
func Classify(req *http.Request, resp *http.Response, err error) Outcome {
	return classify(req, resp, err, defaults.IdempotencyHeader)
}

// classify is Classify for a policy with the IdempotencyHeader keyHeader.
func classify(req *http.Request, resp *http.Response, err error, keyHeader string) Outcome {
	switch {
	case err != nil:
		return classifyError(err)
	case resp.StatusCode < 400, retryafter.Forbids(resp.Header), retryafter.IsStored(resp.Header):
		return Final
	}
	outcome := classifyStatus(req, resp, keyHeader)
	if outcome == Final && retryafter.Asks(resp.Header) {
		return Transient
	}
	return outcome
}

// classifyStatus decides by the status, whatever X-Should-Retry says.
func classifyStatus(req *http.Request, resp *http.Response, keyHeader string) Outcome {
	switch status := resp.StatusCode; status {
	case http.StatusMisdirectedRequest:
		// It may be retried over another connection (RFC 9110 section 15.5.20).
		// net/http would use a connection again that is not about to close. To
		// close it here might break another request, which it may be serving.
		if resp.ProtoMajor == 1 && resp.Close {
			return Unprocessed
		}
	case http.StatusTooEarly:
		// A 425 to a request with Early-Data is for the client that has sent it as
		// early data, which must retry it itself (RFC 8470 section 5.2).
		if req == nil || req.Header.Get("Early-Data") != "1" {
			return Unprocessed
		}
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return Transient
	case http.StatusConflict:
		// Another attempt with the same key may be in progress.
		if req != nil && hasKey(req.Header, keyHeader) {
			return Transient
		}
	case http.StatusRequestEntityTooLarge:
		// The condition is temporary then (RFC 9110 section 15.5.14).
		if _, ok := RetryAfter(resp.Header, time.Time{}); ok {
			return Transient
		}
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported,
		http.StatusVariantAlsoNegotiates, http.StatusInsufficientStorage, http.StatusLoopDetected,
		http.StatusNotExtended, http.StatusNetworkAuthenticationRequired:
	default:
		if status >= 500 && status <= 599 {
			return Transient
		}
	}
	return Final
}

func statusIs(resp *http.Response, status int) bool {
	return resp != nil && resp.StatusCode == status
}

// classifyError decides by types, and by errorTexts where net/http has only a
// text.
func classifyError(err error) Outcome {
	if outcome, ok := statedOutcome(err); ok {
		return outcome
	}
	if errs := joined(err); errs != nil {
		return classifyJoined(errs)
	}
	return classifyUnstated(err)
}

// classifyUnstated is classifyError for an error that joins no others, whatever
// Outcome it states.
func classifyUnstated(err error) Outcome {
	var (
		tooLong *http.MaxBytesError
		dns     *net.DNSError
		op      *net.OpError
	)
	switch {
	case isHandshake(err):
		return Final
	// A MaxBytesError is a layer's limit on a response body. A resume would
	// start the limit over.
	case errors.Is(err, context.Canceled), errors.As(err, &tooLong):
		return Final
	// A Transport with which Base is registered compares this error with ==.
	case err == http.ErrSkipAltProtocol:
		return Final
	case errors.As(err, &dns) && dns.IsNotFound:
		return Final
	// Most TLS alerts mean that client and server do not fit.
	case errors.As(err, &op) && isAlert(op) && !isTransientAlert(err.Error()):
		return Final
	case hasFinalText(err):
		return Final
	}
	// The text of a wrapped OpError may say when it occurred, so it precedes
	// the OpError.
	if text := err.Error(); isUnprocessedText(text) || isNothingWritten(err) ||
		isRejectedByHTTP3(err) {
		return Unprocessed
	}
	if errors.As(err, &op) {
		return classifyOp(op, err)
	}
	return Transient
}

// joined returns the errors that err, or an error that it wraps, joins. The text
// of err begins with that of the first of them, so it proves nothing.
func joined(err error) []error {
	for ; err != nil; err = errors.Unwrap(err) {
		if j, ok := err.(interface{ Unwrap() []error }); ok {
			return j.Unwrap()
		}
	}
	return nil
}

// classifyJoined returns the Outcome of an error that joins errs, such as that
// of a layer that has sent the request to several hosts. It is that of the most
// careful error. A layer that cancels one of its requests after another has
// failed does not forbid a retry, but the canceled request may have been
// processed.
func classifyJoined(errs []error) Outcome {
	outcome, others, canceled := Unprocessed, 0, false
	for _, err := range errs {
		switch _, states := statedOutcome(err); {
		case err == nil:
		case !states && joined(err) == nil && errors.Is(err, context.Canceled):
			canceled = true
		default:
			outcome, others = min(outcome, classifyError(err)), others+1
		}
	}
	switch {
	case others > 0 && canceled:
		return min(outcome, Transient)
	case others > 0:
		return outcome
	case canceled:
		return Final
	}
	return Transient
}

// isHandshake reports whether the client has ended a TLS handshake with err,
// because of the server's certificate or a plain HTTP answer.
func isHandshake(err error) bool {
	var (
		cert      *tls.CertificateVerificationError
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
	)
	return errors.As(err, &cert) || errors.As(err, &authority) || errors.As(err, &hostname) ||
		errors.As(err, &invalid) || errors.As(err, &record) ||
		errors.Is(err, http.ErrSchemeMismatch)
}

// isTimeout reports whether err has a Timeout method, which returns true.
func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// outcomer is an error that determines its own Outcome.
type outcomer interface {
	error
	Outcome() Outcome
}

// statedOutcome returns the Outcome that err, or an error that it wraps,
// determines for itself. It does not look into joined errors, because the
// Outcome of one of them is not that of all.
func statedOutcome(err error) (outcome Outcome, ok bool) {
	for ; err != nil; err = errors.Unwrap(err) {
		own, ok := err.(outcomer)
		if as, has := err.(interface{ As(any) bool }); !ok && has {
			ok = as.As(&own)
		}
		if !ok {
			continue
		}
		if outcome = own.Outcome(); outcome > Unprocessed {
			return Final, true
		}
		return outcome, true
	}
	return Final, false
}

// WithOutcome returns an error that wraps err and has its text. Classify
// returns outcome for it, whatever err is. It is for layers in Base: a circuit
// breaker or a rate limiter that has not sent a request, or a check of bodies.
// An outcome above Unprocessed means Final. If an error joins the result with
// others, the most careful Outcome of them counts, so call WithOutcome last.
// For a nil err, it returns nil.
func WithOutcome(err error, outcome Outcome) error {
	if err == nil {
		return nil
	}
	if outcome > Unprocessed {
		outcome = Final
	}
	return &outcomeError{err, outcome}
}

// outcomeError is the error of WithOutcome.
type outcomeError struct {
	error
	outcome Outcome
}

func (e *outcomeError) Outcome() Outcome { return e.outcome }

func (e *outcomeError) Unwrap() error { return e.error }

// Timeout is for url.Error, which does not look for the method with errors.As.
func (e *outcomeError) Timeout() bool { return isTimeout(e.error) }

// classifyOp decides by the operation that failed on a connection.
func classifyOp(op *net.OpError, err error) Outcome {
	var addr *net.AddrError
	switch {
	// There is no such port.
	case isDial(op) && errors.As(err, &addr):
		return Final
	case isDial(op):
		return Unprocessed
	}
	return Transient
}

// isTransientAlert reports whether an alert means that the peer failed, or that
// bytes were damaged. Other alerts mean that client and server do not fit.
func isTransientAlert(alert string) bool {
	return strings.HasSuffix(alert, "tls: internal error") ||
		strings.HasSuffix(alert, "tls: bad record MAC")
}

// isAlert reports whether op is a TLS alert of the peer. With TLS 1.3 it may
// arrive after the handshake, when net/http considers the connection idle.
func isAlert(op *net.OpError) bool { return op.Op == "remote error" }

func isDial(op *net.OpError) bool {
	return op.Op == "dial" || op.Op == "proxyconnect" || op.Op == "socks connect"
}

// isNothingWritten reports whether err is net/http's nothingWrittenError. A
// connection then failed before a byte of the request was written on it. The
// type is not exported, but RoundTrip returns it
// (persistConn.mapRoundTripError).
func isNothingWritten(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if fmt.Sprintf("%T", err) == "http.nothingWrittenError" {
			return true
		}
	}
	return false
}

// isRejectedByHTTP3 reports whether err is that of quic-go's http3.Transport for a
// request that the server has not begun: H3_REQUEST_REJECTED (RFC 9114 section
// 4.1.1), or no stream could be opened. The types are known by their names,
// because this package does not require quic-go.
func isRejectedByHTTP3(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		switch v := reflect.ValueOf(err); v.Type().String() {
		case "*http3.Error":
			if v = reflect.Indirect(v); v.Kind() != reflect.Struct {
				return false
			}
			code := v.FieldByName("ErrorCode")
			return code.CanUint() && code.Uint() == 0x10b
		case "*http3.errConnUnusable":
			return true
		}
	}
	return false
}

// errorText is a text by which an error of net/http is known if it has no type
// that can be tested for. The tests produce each of them from a real server.
type errorText struct {
	prefix, contains string
	outcome          Outcome
}

const (
	handshakeTimeout = "net/http: TLS handshake timeout"
	cannotRetry      = "http2: Transport: cannot retry err ["
	cannotRewind     = "net/http: cannot rewind body after connection loss"
	resetIdle        = "readLoopPeekFailLocked: "
	closedIdle       = "http: server closed idle connection"
	canceledText     = "net/http: request canceled"
)

// errorTexts returns all of them, the unprocessed before the final ones.
func errorTexts() []errorText {
	return []errorText{
		// set only while no response was expected
		{closedIdle, "", Unprocessed},
		{resetIdle, "", Unprocessed}, // the same, with the error of the read
		{handshakeTimeout, "", Unprocessed},
		// for streams that the server will not process
		{cannotRetry, "GOAWAY]", Unprocessed},
		{"http2: Transport received ", "GOAWAY", Unprocessed}, // it has an error code
		{cannotRewind, "", Unprocessed},

		{"unsupported protocol scheme", "", Final},
		{"http: no Host in request URL", "", Final},
		{"http: nil Request.", "", Final},
		{"net/http: invalid ", "", Final}, // method, header, trailer
		{"net/http: can't write control character in Request.URL", "", Final},
		{canceledText, "", Final}, // Transport.CancelRequest
		{"http: Request.ContentLength=", "with nil Body", Final},
		{"http: ContentLength=", "with Body length", Final},
		{"http2: invalid ", "", Final},      // host, path, header of a connection, trailer
		{"invalid Trailer key ", "", Final}, // over HTTP/1
		// "http2: request body larger than specified content length",
		// "http2: request header list larger than peer's advertised limit"
		{"http2: request ", "larger than", Final},
		{"net/http: HTTP/1.x transport connection broken: ",
			"server response headers exceeded", Final},
		// the status text of a proxy's answer to CONNECT
		{"Proxy Authentication Required", "", Final},
	}
}

// isUnprocessedText considers the outermost error only, because an error inside
// may be about another request of a layer in Base.
func isUnprocessedText(text string) bool {
	for _, e := range errorTexts() {
		if e.outcome == Unprocessed && e.matches(text) {
			return true
		}
	}
	return false
}

// hasFinalText considers err and all errors that it wraps. net/http puts a prefix
// before those that occur while it writes on a connection.
func hasFinalText(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		text := err.Error()
		inner := strings.TrimPrefix(text, "net/http: HTTP/1.x transport connection broken: ")
		for _, e := range errorTexts() {
			if e.outcome == Final && (e.matches(text) || e.matches(inner)) {
				return true
			}
		}
	}
	return false
}

func (e errorText) matches(text string) bool {
	return strings.HasPrefix(text, e.prefix) && strings.Contains(text, e.contains)
}
