package httpretry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"
)

// Outcome is what the result of an attempt means for the next one.
type Outcome uint8

const (
	// Final stands: a success, or a failure that would repeat itself.
	Final Outcome = iota
	// Transient may be different next time. The server may have acted on the
	// request, so only one that is safe to repeat is sent again.
	Transient
	// Unprocessed may be different next time, and the server has not acted on
	// the request, so any request may be sent again.
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
		return "invalid outcome"
	}
}

// Classify is the default of [Policy.Classify]. Exactly one of its arguments
// is not nil. It does not read the response's body.
//
// Of responses, 408, 429 and 5xx are Transient, except 501, 505, 506, 507,
// 508, 510 and 511; so is 413 with a Retry-After (RFC 9110 section 15.5.14),
// and 409 if the request, as Response.Request has it, carries an idempotency
// key: its first copy is still at work. 421 and 425 are Unprocessed. All
// others are Final. X-Should-Retry or Stripe-Should-Retry: false makes any
// response Final, and true makes a 4xx or 5xx Transient.
//
// Of errors, those that happen before the request can reach the server are
// Unprocessed, those that would repeat themselves are Final (certificates,
// unknown hosts, requests that net/http refuses, a canceled context), and the
// others are Transient. That a caller gave up does not show in an error:
// RetryTransport looks at the request's context instead.
func Classify(resp *http.Response, err error) Outcome {
	return classify(resp, err, func() bool {
		return resp.Request != nil && hasStandardKey(resp.Request.Header)
	})
}

func classify(resp *http.Response, err error, keyed func() bool) Outcome {
	switch {
	case err != nil:
		return classifyError(err)
	case resp.StatusCode < 400:
		return Final
	case refused(resp):
		return Final
	}
	outcome := classifyStatus(resp, keyed)
	if outcome == Final && (says(resp, "X-Should-Retry", "true") || says(resp, "Stripe-Should-Retry", "true")) {
		return Transient
	}
	return outcome
}

func classifyStatus(resp *http.Response, keyed func() bool) Outcome {
	switch status := resp.StatusCode; status {
	case http.StatusMisdirectedRequest, // RFC 9110 section 15.5.20
		http.StatusTooEarly: // RFC 8470 section 5.2
		return Unprocessed
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return Transient
	case http.StatusConflict:
		if keyed() {
			return Transient
		}
	case http.StatusRequestEntityTooLarge:
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

// finalReason says why a response is the last.
func finalReason(resp *http.Response) Reason {
	if resp.StatusCode >= 400 && refused(resp) {
		return ReasonServerRefused
	}
	return ReasonFinal
}

// refused reports whether the server asks not to be asked again.
func refused(resp *http.Response) bool {
	return says(resp, "X-Should-Retry", "false") || says(resp, "Stripe-Should-Retry", "false")
}

func says(resp *http.Response, header, value string) bool {
	values := resp.Header[header]
	return len(values) > 0 && strings.EqualFold(strings.TrimSpace(values[0]), value)
}

// classifyError goes by types, and by errorTexts where net/http has only a
// text.
func classifyError(err error) Outcome {
	var (
		cert      *tls.CertificateVerificationError
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		dns       *net.DNSError
		op        *net.OpError
	)
	switch {
	case errors.As(err, &cert), errors.As(err, &authority), errors.As(err, &hostname), errors.As(err, &invalid):
		return Final
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return Final // a plain-HTTP answer to TLS
	case errors.Is(err, context.Canceled):
		return Final
	case errors.As(err, &dns) && dns.IsNotFound:
		return Final
	case errors.As(err, &op) && isAlert(op) && !isPassing(err.Error()):
		return Final // all other TLS alerts say that the two sides do not fit
	}
	if outcome, known := classifyText(err.Error()); known {
		return outcome // even of a wrapped OpError, whose text says when it happened
	}
	if errors.As(err, &op) {
		return classifyOp(op, err)
	}
	return Transient
}

// classifyOp goes by the operation that failed on a connection.
func classifyOp(op *net.OpError, err error) Outcome {
	var addr *net.AddrError
	switch {
	case isDial(op) && errors.As(err, &addr):
		return Final // no such port
	case isDial(op):
		return Unprocessed
	}
	return Transient
}

// isPassing reports whether an alert is one of those that do not say that the
// two sides do not fit: the peer broke, or bytes did on their way to it.
func isPassing(alert string) bool {
	return strings.HasSuffix(alert, "tls: internal error") || strings.HasSuffix(alert, "tls: bad record MAC")
}

// isAlert reports whether op is what the other side of TLS had to say. It may
// come after the handshake, when net/http holds the connection for idle.
func isAlert(op *net.OpError) bool { return op.Op == "remote error" }

func isDial(op *net.OpError) bool {
	return op.Op == "dial" || op.Op == "proxyconnect" || op.Op == "socks connect"
}

// errorText is a text by which an error of net/http is known where it has no
// type that can be tested for. The tests produce each from a real server.
type errorText struct {
	prefix, contains string
	outcome          Outcome
}

const handshakeTimeout = "net/http: TLS handshake timeout"

func errorTexts() []errorText {
	return []errorText{
		{"http: server closed idle connection", "", Unprocessed}, // set only while no response was expected
		{"readLoopPeekFailLocked: ", "", Unprocessed},            // the same, with the error of the read
		{handshakeTimeout, "", Unprocessed},
		{"http2: Transport: cannot retry err [", "GOAWAY]", Unprocessed},
		{"http2: Transport received ", "GOAWAY", Unprocessed}, // for streams the server will not process
		{"net/http: cannot rewind body after connection loss", "", Unprocessed},

		{"unsupported protocol scheme", "", Final},
		{"http: no Host in request URL", "", Final},
		{"http: nil Request.", "", Final},
		{"net/http: invalid ", "", Final}, // method, header, trailer
		{"net/http: can't write control character in Request.URL", "", Final},
		{"http: Request.ContentLength=", "with nil Body", Final},
		{"http: ContentLength=", "with Body length", Final},
		{"http2: request ", "larger than", Final}, // body than stated, headers than the server takes
		{"net/http: HTTP/1.x transport connection broken: ", "server response headers exceeded", Final},
	}
}

func classifyText(text string) (outcome Outcome, known bool) {
	for _, e := range errorTexts() {
		if e.matches(text) {
			return e.outcome, true
		}
	}
	return 0, false
}

// matches takes into account that net/http wraps what happens while it writes
// on a connection.
func (e errorText) matches(text string) bool {
	inner := strings.TrimPrefix(text, "net/http: HTTP/1.x transport connection broken: ")
	return (strings.HasPrefix(text, e.prefix) || strings.HasPrefix(inner, e.prefix)) && strings.Contains(text, e.contains)
}
