package contract

import (
	"net/http"

	"github.com/seed421102f4/httpretry/retrytest"
)

// Errors of a base transport, as net/http returns them.
var (
	// ErrReset is Transient, because the request may have been processed.
	ErrReset = retrytest.Reset().Err

	// ErrRefused is Unprocessed, because the request was never sent.
	ErrRefused = retrytest.Refused().Err
)

// BaseFunc is a function as a base transport.
type BaseFunc func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f BaseFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// IdleCloser counts the calls of CloseIdleConnections.
type IdleCloser struct {
	http.RoundTripper
	Closed int
}

// CloseIdleConnections is called by http.Client.CloseIdleConnections.
func (c *IdleCloser) CloseIdleConnections() { c.Closed++ }
