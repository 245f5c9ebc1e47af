// Package wire watches the sends of one attempt through the hooks of
// net/http/httptrace. It stops net/http from resending a request that is not
// idempotent. It records whether some part of the request was written and
// whether a request was answered, because that decides what an error proves.
//
// It does not know policies, outcomes or responses.
//
// # How net/http sends a request again
//
// Within one call of RoundTrip, net/http may send a request more than once. A
// request that must be sent at most once (Options.AtMostOnce) is stopped as
// follows.
//
//	        net/http resends the request if …     what stops it
//	HTTP/1  nothing was written on a connection   nothing: it was not sent
//	        that was used before
//	HTTP/1  such a connection ended without an    HideEmptyKeys, or gotConn,
//	        answer, and the request isReplayable  which closes the connection
//	HTTP/2  the connection could not be used      nothing: it was not sent
//	HTTP/2  a GOAWAY or REFUSED_STREAM came, and  GetBody, which is hidden
//	        GetBody returns the body once more    or returns ErrResent
//	HTTP/2  the same came, and it has no body     an empty body, or gotConn,
//	                                              which cancels it
//	any     a layer above has sent a body of its  gotConn, if that body was
//	        own, with a GetBody of its own        read before the header
//
// The functions that decide this are persistConn.shouldRetryRequest with
// Request.isReplayable for HTTP/1 and http2shouldRetryRequest for HTTP/2. Up to
// Go 1.26, net/http also resends over HTTP/2 after a PROTOCOL_ERROR.
//
// For HTTP/2 there are two loops. http2Transport.RoundTripOpt resends a request
// up to seven times, with waits, as long as there is an open connection. If
// there is none, Transport.roundTrip opens one and begins again, without a
// limit and without a wait (Go issue 52459). MaxSends limits it for requests
// that may be sent more than once.
//
// A request that gotConn cancels is not written. Over HTTP/2, net/http looks at
// the context before it writes the header (clientStream.encodeAndWriteHeaders).
// Over HTTP/1 it does not, so the connection is closed. A layer may have
// detached the request from the context of the attempt. Then the first field of
// the header closes the HTTP/2 connection before the header is written.
//
// After Base has returned an error, a request may still be written, if a layer does
// not wait for it. Then the first field of its header closes each connection that
// the attempt has got over HTTP/1, or since then (Seal). Over HTTP/2, net/http may
// also write a request that was canceled, and others would lose the connection.
//
// Three resends are not recognized:
//
//   - A layer has recorded the body while it was sent, and sends the record.
//     The first body was read after the header, as net/http reads a body.
//   - Below a layer, net/http resends a request to an IP address, through
//     another proxy than before. The hooks show only the address of the proxy,
//     so the request seems to go to another host.
//   - A layer sends in a context without the values of the attempt's.
//
// # After a GOAWAY
//
// A POST must be sent at most once, and its header was written over HTTP/2.
// Then the server sends GOAWAY with a last stream ID that is lower than that of
// the POST, so it will not process the POST (RFC 9113 section 6.8). The error of
// net/http is the only proof of that, because a resend looks the same after
// REFUSED_STREAM, whose request the server may have processed. The result
// depends on http2shouldRetryRequest and the guards above:
//
//	the POST                  net/http                  result of the attempt
//	is the first stream, and  returns "Transport        Unprocessed
//	GOAWAY has an error code  received GOAWAY"
//	has a body and no         returns "cannot retry     Unprocessed
//	GetBody (1)               err [… GOAWAY]"
//	has no body (2)           sends it again            ErrResent of gotConn
//	has a body and GetBody    calls GetBody             ErrResent of GetBody
//
// (1) getBodyFor in attempt.go hides GetBody, and framing in framing.go gives a
// request without a body an empty one, if Base is net/http's Transport, alone or
// below layers that all have an Unwrap method. GetBody is not hidden if the host
// has answered over HTTP/1.
//
// (2) Below layers, that is also a request to a host that has answered none yet,
// because its protocol is not known.
//
// ErrResent is Transient, so the request ends with ReasonNotIdempotent. An
// Unprocessed request is sent again if its body can be, after "cannot retry" at
// once. errorTexts in classify.go has the two texts. If the server has sent a 1xx
// response before, Unprocessed becomes Transient (isOfAnother in outcome.go).
//
// Two cases need no guard:
//
//   - If GOAWAY arrives before the header is written, net/http closes the body
//     and sends the request on another connection. Attempt.Restarted reopens
//     the body.
//   - If the last stream ID is not lower, the POST continues. If the connection
//     then ends without a response, the error is Transient.
//
// # HTTP/3
//
// The http3.Transport of quic-go sends a request again only if no stream could be
// opened, or if the server has rejected it (RFC 9114 section 4.1.1). So it is not
// stopped. It is known by the types of its connections and errors.
//
// # Hooks
//
// The hooks of one send come in this order:
//
//	GetConn           goroutine of RoundTrip; over HTTP/2, sometimes twice or never
//	GotConn           goroutine of RoundTrip
//	WroteHeaderField  goroutine that writes, before it sends the header
//	WroteHeaders      the same goroutine
//	WroteRequest      the same goroutine, with or without an error
//
// The goroutine that writes is the connection's over HTTP/1, and the request's
// own over HTTP/2.
//
// At any time after GotConn, even before the request is written, the goroutine
// that reads from the connection calls these:
//
//	GotFirstResponseByte  once, for the first response, which may be a 1xx
//	Got1xxResponse        for each 1xx response but 101
//
// So the final response that follows a 1xx is not reported. The goroutines that
// write and read may also call hooks after RoundTrip has returned. The hooks of
// the next send come in the same order. If a layer sends requests of its own in
// the context of the attempt, their hooks come in between.
package wire
