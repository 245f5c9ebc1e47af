package httpretry

import (
	"io"
	"net/http"
)

// chainWriter is the ResponseWriter of a handler in Middleware. Only what
// states a status matters to it: all that writes without, states 200.
type chainWriter struct {
	http.ResponseWriter
	inbound *inbound
}

// writer returns a chainWriter for w. Whether handlers can flush and hijack
// shows in its type, as in w's. It is no http.CloseNotifier: the request's
// context says the same.
func (in *inbound) writer(w http.ResponseWriter) http.ResponseWriter {
	own := &chainWriter{w, in}
	_, flushes := w.(http.Flusher)
	hijacker, hijacks := w.(http.Hijacker)
	switch {
	case flushes && hijacks:
		return struct {
			*chainWriter
			flusher
			http.Hijacker
		}{own, flusher{w}, hijacker}
	case flushes:
		return struct {
			*chainWriter
			flusher
		}{own, flusher{w}}
	case hijacks:
		return struct {
			*chainWriter
			http.Hijacker
		}{own, hijacker}
	}
	return own
}

func (w *chainWriter) WriteHeader(status int) {
	if w.inbound.gaveUp.Load() && (status >= 500 || status == http.StatusTooManyRequests) {
		if h := w.Header(); len(h["X-Should-Retry"]) == 0 {
			h["X-Should-Retry"] = []string{"false"}
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *chainWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// ReadFrom implements io.ReaderFrom, by which net/http sends files.
func (w *chainWriter) ReadFrom(src io.Reader) (int64, error) { return io.Copy(w.ResponseWriter, src) }

// WriteString implements io.StringWriter.
func (w *chainWriter) WriteString(s string) (int, error) {
	return io.WriteString(w.ResponseWriter, s)
}

// Push implements http.Pusher, which may say that it cannot.
func (w *chainWriter) Push(target string, opts *http.PushOptions) error {
	if p, ok := w.ResponseWriter.(http.Pusher); ok {
		return p.Push(target, opts)
	}
	return http.ErrNotSupported
}

// flusher is an http.Flusher whose error http.ResponseController can have.
type flusher struct{ w http.ResponseWriter }

func (f flusher) Flush()            { _ = f.FlushError() }
func (f flusher) FlushError() error { return http.NewResponseController(f.w).Flush() }
