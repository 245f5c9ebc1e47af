package main

import "math/rand/v2"

// A fault is one of the ways in which a server fails.
type fault int

const (
	noFault     fault = iota
	unavailable       // a 503, with Retry-After or without
	resets            // a reset before the answer
	cuts              // a reset in the body of the answer
	stalls            // no answer, or no more of its body
	early             // a 503 before all of the upload has arrived
	leaves            // GOAWAY or REFUSED_STREAM
	faultCount
)

var faultNames = [faultCount]string{
	"none", "503", "reset before the answer", "reset in the body", "stall", "early answer to an upload", "GOAWAY or REFUSED_STREAM",
}

// drawFault returns a fault for a tenth of all requests. Only uploads can have
// an early answer, and only requests over HTTP/2 a GOAWAY.
func drawFault(isUpload, isHTTP2 bool) fault {
	if rand.N(10) > 0 {
		return noFault
	}
	for {
		f := unavailable + rand.N(faultCount-unavailable)
		if (f == early && !isUpload) || (f == leaves && !isHTTP2) {
			continue
		}
		return f
	}
}

// retryAfter returns the header of a 503 that asks for a wait, or "". A whole
// second delays all retries to the host, so few 503s ask for it.
func retryAfter() (name, value string) {
	switch n := rand.N(100); {
	case n == 0:
		return "retry-after", "1"
	case n < 50:
		return "retry-after-ms", "20"
	}
	return "", ""
}

// half reports true in half of all calls.
func half() bool { return rand.N(2) == 0 }
