// Package wire watches the sends of one attempt through the hooks of
// net/http/httptrace. It stops net/http from sending a request twice that is
// not idempotent, and it knows what an error proves: whether some part of the
// request was written, and whether a request was answered.
//
// It does not know policies, outcomes and responses.
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
//	HTTP/2  the same came, and it has no body     gotConn, which cancels it
//	any     a layer above has sent a body of its  gotConn, if that body was
//	        own, with a GetBody of its own        read before the header
//
// The functions that decide this are persistConn.shouldRetryRequest with
// Request.isReplayable for HTTP/1 and http2shouldRetryRequest for HTTP/2. Until
// Go 1.26, PROTOCOL_ERROR is a third such error of HTTP/2.
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
// Two resends are not recognized: of a body that a layer has recorded while it
// was sent, and, below a layer, to an IP address through a different proxy each
// time. The first is read after the header, as net/http reads a body. The
// second goes to another host, as far as the hooks show.
//
// # Hooks
//
// The hooks of one send come in this order:
//
//	GetConn           goroutine of RoundTrip; twice for some of HTTP/2
//	GotConn           goroutine of RoundTrip
//	WroteHeaderField  goroutine that writes, before it sends the header
//	WroteHeaders      the same goroutine
//	WroteRequest      the same goroutine, with or without an error
//
// At any time after GotConn, even before the request is written, the goroutine
// that reads from the connection calls these:
//
//	GotFirstResponseByte  once, for the first response, if only a 1xx
//	Got1xxResponse        for each 1xx response but 101
//
// So the final response that follows a 1xx is not reported. The goroutines that
// write and read may call hooks after RoundTrip has returned. The next send
// begins with GetConn again. If a layer sends requests of its own in the
// context of the attempt, their hooks come in between.
package wire
