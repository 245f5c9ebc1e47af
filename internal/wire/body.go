package wire

import (
	"io"
	"net/http"
	"slices"
)

// Resendable reports whether net/http may resend a request over HTTP/1 after it
// was written (Request.isReplayable).
func Resendable(method string, h http.Header) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	for _, name := range keyHeaders() {
		if _, ok := h[name]; ok {
			return true
		}
	}
	return false
}

// HideEmptyKeys removes key headers without a value. net/http does not send
// them, but they permit it to resend the request (Request.isReplayable).
func HideEmptyKeys(h http.Header) {
	for _, name := range keyHeaders() {
		if values, ok := h[name]; ok &&
			!slices.ContainsFunc(values, func(v string) bool { return v != "" }) {
			delete(h, name)
		}
	}
}

func keyHeaders() [2]string { return [2]string{"Idempotency-Key", "X-Idempotency-Key"} }

// Body returns the body for the request, which is body or reads from it. It is
// called once, after Start.
func (t *Trace) Body(body io.ReadCloser) io.ReadCloser {
	if t == nil || !t.state.watchesReads() {
		return body
	}
	t.body = watchedBody{body, t}
	return &t.body
}

// GetBody returns GetBody for the request. While the server may be processing
// the request, it returns ErrResent, so that net/http does not resend it.
func (t *Trace) GetBody(getBody func() (io.ReadCloser, error)) func() (io.ReadCloser, error) {
	if t == nil || getBody == nil || !t.state.options.AtMostOnce {
		return getBody
	}
	return func() (io.ReadCloser, error) {
		if t.forbidsResend() {
			return nil, ErrResent
		}
		body, err := getBody()
		if err != nil || body == nil || !t.state.watchesReads() {
			return body, err
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.state.madeBody()
		return &watchedBody{body, t}, nil
	}
}

func (t *Trace) forbidsResend() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state.forbidsResend()
}

// watchedBody tells trace when it is read.
type watchedBody struct {
	io.ReadCloser
	trace *Trace
}

// Read implements io.Reader.
func (b *watchedBody) Read(p []byte) (int, error) {
	b.trace.noteRead()
	return b.ReadCloser.Read(p)
}

func (t *Trace) noteRead() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state.readBody()
}
